from __future__ import annotations

import json

from monolith.cli._bench import report
from monolith.cli._bench.measurement import Measurement, Sense
from monolith.cli._bench.setting import Setting

MACHINE = {"processor": "abacus"}
MEASUREMENTS = [
    Measurement(row="a", measure="fast", figure=1234.5, unit="k/s", peer="torch", peer_figure=12.3, ratio=100, limit=3),
    Measurement(row="a", measure="slow", figure=11.0, unit="us", limit=10, sense=Sense.AT_MOST),
    Measurement(row="b", measure="absent", peer="FBGEMM", limit=3, note="peer is not installed: a | b"),
]


def test_the_text_has_a_line_for_each_measurement_with_its_verdict() -> None:
    lines = report.as_text(MEASUREMENTS, MACHINE).splitlines()
    assert lines[0] == "processor: abacus"
    assert lines[2].split() == ["measure", "ours", "peer", "ratio", "must", "reach", "ok"]
    assert lines[3].split() == ["fast", "1,234", "k/s", "torch", "12.3", "100", ">=", "3", "x", "yes"]
    assert lines[4].split() == ["slow", "11", "us", "<=", "10", "us", "NO"]
    assert lines[5].split() == ["absent", "FBGEMM", ">=", "3", "x"]
    assert "1 of 2 requirements met" in lines
    assert lines[-1] == "- absent: peer is not installed: a | b"


def test_columns_line_up() -> None:
    lines = report.as_text(MEASUREMENTS, MACHINE).splitlines()
    assert len({line.index(word) for line, word in ((lines[2], "must"), (lines[3], ">="), (lines[4], "<="))}) == 1


def test_markdown_rows_have_as_many_cells_as_the_head() -> None:
    table = [line for line in report.as_markdown(MEASUREMENTS, MACHINE).splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(MEASUREMENTS)
    assert len({line.count("|") for line in table}) == 1


def test_json_is_one_object_with_machine_setting_and_measurements() -> None:
    document = json.loads(report.as_json(MEASUREMENTS, MACHINE, Setting(threads=5)))
    assert document["machine"] == MACHINE
    assert document["setting"]["threads"] == 5
    assert [each["ok"] for each in document["measurements"]] == [True, False, None]


def test_an_interrupted_run_without_a_row_still_prints() -> None:
    assert "0 of 0 requirements met" in report.as_text([], MACHINE)
