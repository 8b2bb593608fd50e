"""docs/how-to/export.md runs as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from monolith.cli import main
from monolith.export.export_folder import versions_in

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "export.md"


@pytest.mark.slow
def test_the_blocks_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "how_to"}
    for kind, block in blocks:
        if kind == "bash":
            program, *arguments = shlex.split(block)
            assert program == "monolith"
            assert main(arguments) == 0
        else:
            exec(compile(block, "export.md", "exec"), names)  # noqa: S102 - the reader's lines, as they stand
    assert [kind for kind, _ in blocks].count("python") == 7
    assert versions_in("from_command")
