"""The page about own data does what it says: files are written, commands typed, outputs those that it shows."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from monolith import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "your-own-data.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def typed(line: str) -> str:
    """What a command prints."""
    program, *arguments = shlex.split(line)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if program == "python":
            runpy.run_path(arguments[0])
        else:
            assert program == "monolith"
            assert cli.main(arguments) == 0
    return printed.getvalue()


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    output, steps = "", []
    for kind, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            name = block.splitlines()[0].removeprefix("# ")
            assert re.fullmatch(r"\w+\.py", name)
            Path(name).write_text(block, encoding="utf-8")
        elif kind == "bash":
            for line in block.splitlines():
                output = typed(line)
                steps.append(line)
        else:
            assert output == block
    assert len([line for line in steps if "--max_steps" in line]) == 2
    with Path("scores.csv").open(newline="") as file:
        scores = list(csv.DictReader(file))
    assert [int(row["event"]) for row in scores] == list(range(200))
    with Path("clicks.csv").open(newline="") as file:
        clicked = [int(row["clicked"]) for row in csv.DictReader(file)]
    mean = {
        label: sum(float(row["prediction"]) for row, c in zip(scores, clicked, strict=True) if c == label)
        for label in (0, 1)
    }
    assert mean[1] / clicked.count(1) > mean[0] / clicked.count(0) + 0.1  # it has learnt, over the stop
    sys.modules.pop("ranker", None)
