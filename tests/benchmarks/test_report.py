from __future__ import annotations

import json

import pytest

from monolith.cli._bench import report
from monolith.cli._bench.measurement import Measurement, Sense
from monolith.cli._bench.report import in_words, summary_in_words
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


def test_ratios_are_reported_in_words_and_without_a_verdict() -> None:
    text = report.as_ratios(MEASUREMENTS, MACHINE)
    lines = text.splitlines()
    assert lines[2].split() == ["measure", "ours", "peer", "ratio"]
    assert lines[3].split() == ["fast", "1,234", "k/s", "torch", "12.3", "100"]
    assert "- fast: 100 times as fast as torch" in lines
    assert "- slow: 11 us, less is better" in lines
    assert "- absent: not measured (peer is not installed: a | b)" in lines
    assert "requirements" not in text


@pytest.mark.parametrize(
    ("ratio", "unit", "sense", "said"),
    [
        (2.5, "k examples/s", Sense.AT_LEAST, "2.5 times as fast as torch"),
        (0.61, "MB/s", Sense.AT_LEAST, "61% of the speed of torch"),
        (1.02, "MB/s", Sense.AT_LEAST, "as fast as torch"),
        (1.4, "ms", Sense.AT_MOST, "1.4 times torch, less is better"),
        (0.97, "ms", Sense.AT_MOST, "the same as torch"),
    ],
)
def test_a_ratio_reports_which_side_is_better(ratio: float, unit: str, sense: Sense, said: str) -> None:
    found = Measurement(
        row="a", measure="it", figure=1, unit=unit, peer="torch", peer_figure=1, ratio=ratio, sense=sense
    )
    assert in_words(found) == f"it: {said}"


def test_a_figure_whose_peer_is_missing_reports_the_reason() -> None:
    alone = Measurement(row="a", measure="it", figure=12.0, unit="k/s", peer="FBGEMM", note="peer is not installed")
    assert in_words(alone) == "it: 12 k/s, not compared with FBGEMM (peer is not installed)"


def test_many_ratios_against_one_peer_are_summarized_by_their_range() -> None:
    found = [
        Measurement(row="rules", measure=f"m{n}", unit="ms", peer="Sgd", ratio=n / 10, sense=Sense.AT_MOST)
        for n in range(5, 10)
    ]
    assert summary_in_words(found) == ["rules, 5 measures: 0.5 to 0.9 times Sgd, less is better"]
    assert len(summary_in_words(found[:4])) == 4
