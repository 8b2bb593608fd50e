"""``monolith validate``: copies by their times, one table, one page, and lines that say what is wrong."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from monolith.cli import main
from monolith.cli._arguments.validate import interval, seconds, written

TASK = "monolith.testing:ExampleTask"  # twenty batches of 32, a minute apart


def test_times_are_written_as_people_write_them() -> None:
    assert [seconds(text) for text in ("90", "90s", "1.5min", "30 min", "5h", "2d")] == [
        90,
        90,
        90,
        1800,
        18000,
        172800,
    ]
    assert interval("never") == math.inf
    assert [written(seconds(text)) for text in ("90", "60", "7200s", "48h")] == ["90s", "1min", "2h", "2d"]
    for text in ("soon", "-5", "5m", "never "):
        with pytest.raises(argparse.ArgumentTypeError, match="such as 90s, 30min, 5h or 2d, got"):
            interval(text)


def test_every_time_is_a_copy_of_one_trained_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    command = ["validate", TASK, "--take_over", "0", "3min", "never", "--warm_up", "5min", "--window", "5min"]
    assert main([*command, "--out", str(page)]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["every batch", "3min", "never"]
    assert [line.split()[-2] for line in lines[1:]] == ["15", "5", "1"]
    assert "640 examples" in shown.err
    assert page.read_text(encoding="utf-8").count("<polyline") == 3 * 3 * 2


def test_json_is_the_only_output_and_options_have_their_effect(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["validate", TASK, "--json", "--take_over", "0", "--warm_up", "2min", "--window", "4min"]
    assert main([*command, "--dense", "never", "--evict", "1min", "--examples", "320", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(shown.out)
    copy = found["copies"]["every batch"]
    assert found["examples"] == 320
    assert [window["examples"] for window in copy["windows"]] == [4 * 32, 4 * 32]
    assert copy["rule"]["dense_seconds"] == "infinite"


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", TASK, "--take_over", "never"]) == 1
    assert "copy 'never' takes rows over once" in capsys.readouterr().err
    assert main(["validate", TASK, "--warm_up", "3d"]) != 0
    assert "nothing was measured: the last example is of" in capsys.readouterr().err
    assert main(["validate", TASK, "--head", "click"]) != 0
    assert "head='click' selects one of several" in capsys.readouterr().err
    assert main(["validate", TASK, "--params_override", '{"nothing": 1}']) != 0
    assert "nothing" in capsys.readouterr().err
    assert main(["validate", TASK, "--out", str(tmp_path / "none" / "page.html")]) != 0
    assert "--out: expected a file in an existing folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["validate", TASK, "--interval", "5h"])
    assert "--take_over, for any number of copies" in capsys.readouterr().err
