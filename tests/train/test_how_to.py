"""docs/how-to/train.md runs as it stands, its commands too."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from monolith.cli import main

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "train.md"


@pytest.mark.slow
def test_the_blocks_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "how_to"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)  # noqa: S102 - the reader's lines, as they stand
    assert len(blocks) == 7


def test_the_commands_run_on_the_task_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_module.py").write_text(blocks[0], encoding="utf-8")
    commands = re.findall(r"^\$ monolith (.*)$", text, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert main([str(tmp_path / "m") if word == "/models/ranker" else word for word in shlex.split(command)]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "7,680 predictions are in clicks.parquet"
    assert (tmp_path / "clicks.parquet").is_file()
