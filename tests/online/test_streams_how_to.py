"""The how-to of streams runs as it stands, and names every count and every argument."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from monolith import cli
from monolith.cli._arguments._streams import STREAM_ONLY
from monolith.online.stream import StreamCounts

PAGE = "streams.md"


def test_the_page_runs(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "bash", "python"]
    exec(compile(blocks[0][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    for line in blocks[1][1].splitlines():
        assert cli.main(shlex.split(line)[1:]) == 0
    told = capsys.readouterr()
    assert "positives 15, negatives 85" in told.out
    assert "with 10 rows is saved" in told.out + told.err
    exec(compile(blocks[2][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    assert capsys.readouterr().out == "10 rows are here\n"


def test_every_count_and_argument_is_on_the_page(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    names = [f"`{field.name}`" for field in fields(StreamCounts)] + [f"--{name}" for name in STREAM_ONLY]
    assert [name for name in names if name not in text] == []
