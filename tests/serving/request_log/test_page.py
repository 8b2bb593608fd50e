"""The page of the request log runs as it stands: serve, ask, click, join, compare, train."""

from __future__ import annotations

import json
import re
import shlex
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from monolith.cli import main
from monolith.data import DenseColumn, Ids, Label, Parser, read_examples
from serving.server.serving_process import serve_while

PAGE = "request-log.md"


def _ask(place: dict[str, Any], lines: list[str]) -> None:
    for line in lines:
        _, _, head, _, body, url = shlex.split(line.removeprefix("$ "))
        name, _, value = head.partition(": ")
        asked = urllib.request.Request(url.replace("8501", str(place["port"])), body.encode(), {name: value})  # noqa: S310
        with urllib.request.urlopen(asked, timeout=120) as answer:  # noqa: S310 - our own server
            assert answer.headers["x-request-id"] == value
            assert len(json.loads(answer.read())["outputs"]) in (2, 3)


@pytest.mark.slow
def test_the_page_runs(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "clicks", raising=False)  # that of another page
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|bash|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "bash", "console", "python", "bash"]
    (_, first), (_, serve), (_, curls), (_, click), (_, commands) = blocks
    try:
        exec(compile(first, PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
        command = shlex.split(serve.replace("8501", "0"))
        assert serve_while(command[1:], lambda place: _ask(place, curls.strip().splitlines())) == 0
        exec(compile(click, PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
        for line in commands.strip().splitlines():
            assert main(shlex.split(line)[1:]) == 0
    finally:
        sys.modules.pop("clicks", None)
    told = capsys.readouterr().out
    assert "positives 1, negatives 4" in told
    assert "5 examples of 2 requests" in told
    columns = [Ids("user"), Ids("item"), Label(), DenseColumn("__SERVED__/predictions")]
    joined: Any = Parser("example", columns).parse(list(read_examples("examples-00000", "sort_id")))
    found = {
        (user, item): label
        for (user,), (item,), label in zip(
            joined["user"].to_lists(), joined["item"].to_lists(), joined["label"].reshape(-1).tolist(), strict=True
        )
    }
    assert found == {(7, 1): 0.0, (7, 2): 1.0, (7, 3): 0.0, (8, 2): 0.0, (8, 3): 0.0}
    assert bool((joined["__SERVED__/predictions"] > 0).all())
