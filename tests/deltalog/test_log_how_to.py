"""The how-to of the delta log runs as it stands, and names every option and every answer."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from monolith import cli
from monolith.online import Follower, PublisherConfig

PAGE = "delta-log.md"


def test_the_page_runs(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "bash", "bash"]
    exec(compile(blocks[0][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    printed = capsys.readouterr().out
    assert re.search(r"^\{'model\.0000-1024': \d\} 0$", printed, re.MULTILINE)
    assert printed.endswith("[[0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25]]\n")
    for line in "".join(block for kind, block in blocks if kind == "bash").splitlines():
        assert cli.main(shlex.split(line)[1:]) == 0
    assert "all as written" in capsys.readouterr().out
    assert any((tmp_path / "delta_log" / "bases").glob("compact-*.json"))


def test_every_option_and_every_answer_is_on_the_page(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    names = [field.name for field in fields(PublisherConfig)]
    names += [name for name, value in vars(Follower).items() if not name.startswith("_") and name != "close"]
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []
