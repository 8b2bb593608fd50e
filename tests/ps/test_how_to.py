"""docs/how-to/parameter-servers.md: its commands and blocks run as they stand, but for ports and installing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PAGE = "parameter-servers.md"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def started(command: str, running: ExitStack) -> tuple[str, str]:
    """The port that the page has, and the one that the system gave."""
    program, *options = shlex.split(command)
    assert program == "monolith"
    named = options[options.index("--port") + 1]
    options[options.index("--port") + 1] = "0"
    server = running.enter_context(
        subprocess.Popen([sys.executable, "-m", "monolith", *options, "--json"], stdout=subprocess.PIPE, text=True)
    )
    running.callback(server.kill)
    assert server.stdout is not None
    return named, json.loads(server.stdout.readline())["address"].rpartition(":")[2]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_the_page_runs(project_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    install, servers = blocks(text, "bash")
    assert install == "pip install 'monolith-torch[ps]'\n"
    scope: dict[str, Any] = {"__name__": "how_to"}
    with ExitStack() as running:
        ports = dict(started(command, running) for command in servers.splitlines())
        assert len(ports) == 2
        for block in blocks(text, "python"):
            code = re.sub("|".join(ports), lambda found: ports[found[0]], block)
            exec(compile(code, PAGE, "exec"), scope)  # noqa: S102 - the reader's lines, as they stand
        for name in ("emb", "half"):
            scope[name].store.close()
        scope["task"].emb.store.close()
