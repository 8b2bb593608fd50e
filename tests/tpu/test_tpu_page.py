"""docs/how-to/tpu.md runs as it stands, its commands too."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from monolith.cli import main
from monolith.testing import ExampleTask
from monolith.tpu import TpuConfig
from tpu.jax_tasks import tolerance

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "tpu.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
assert PAGE.name == "tpu.md"


@pytest.mark.slow
def test_the_blocks_and_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    programs = [block for kind, block in BLOCKS if kind == "python"]
    (tmp_path / "tpu_ranker.py").write_text(programs[-1], encoding="utf-8")
    for program in programs:
        exec(compile(program, PAGE.name, "exec"), {"__name__": "how_to"})  # noqa: S102 - the reader's lines
    commands = [line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines()]
    assert len(commands) == 4
    for command in commands:
        program_name, *words = shlex.split(command)
        assert program_name == "monolith"
        assert main(words) == 0
    out, err = capsys.readouterr()
    assert "step 20 with 956 rows is saved in ranker" in err
    assert "step 25 with" in err
    assert "step 8 with" in err
    assert "global_step: 8" in out
    assert list((tmp_path / "clicks" / "eval").glob("events.out.tfevents.*"))


def test_every_flag_is_on_the_page() -> None:
    for each in fields(TpuConfig):
        assert f"`--{each.name}`" in TEXT, each.name


def test_the_bound_on_the_page_is_that_of_the_tests() -> None:
    assert 4e-6 < tolerance(ExampleTask(), "rows", 20) < 6e-6
    assert "6 millionths" in TEXT
