from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.suites.catalog import SUITES
from monolith.cli._bench import machine, runner
from monolith.cli._bench.catalog import BenchRow
from monolith.cli._bench.measurement import Measurement, RowSkippedError
from monolith.cli._bench.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable

SETTING = Setting()


def row(key: str, *, needed_bytes: int = 0) -> BenchRow:
    return BenchRow(key=key, title=f"title of {key}", needed_bytes=lambda _: needed_bytes, function=key)


def answer_by(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Callable[[], Any]]) -> None:
    def call(function: str, setting: Setting, *, row: str) -> Any:
        return answers[row]()

    monkeypatch.setattr(runner, "call", call)
    monkeypatch.setattr(machine, "busy_ratio", lambda: 0.0)


def raising(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


def measured(key: str) -> list[dict[str, Any]]:
    return [Measurement(row=key, measure=f"measure of {key}", figure=1.0).to_json()]


def test_rows_are_measured_in_order_and_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_by(monkeypatch, {"a": lambda: measured("a"), "b": lambda: measured("b")})
    told: list[str] = []
    outcome = runner.run([row("a"), row("b")], SETTING, tell=told.append)
    assert [each.row for each in outcome.measurements] == ["a", "b"]
    assert told[0] == "[1/2] a: title of a"
    assert told[-1].startswith("[2/2] b: ")


def test_a_broken_row_costs_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_by(monkeypatch, {"a": raising(runner.ChildFailedError("a died")), "b": lambda: measured("b")})
    outcome = runner.run([row("a"), row("b")], SETTING, tell=lambda _: None)
    assert outcome.failed == ["a"]
    assert [each.note for each in outcome.measurements] == ["failed: a died", ""]


def test_a_skipped_row_reports_the_reason_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_by(monkeypatch, {"a": raising(RowSkippedError("no compiler; install g++"))})
    outcome = runner.run([row("a")], SETTING, tell=lambda _: None)
    assert outcome.failed == []
    assert outcome.measurements[0].note == "skipped: no compiler; install g++"


def test_control_c_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_by(monkeypatch, {"a": lambda: measured("a"), "b": raising(KeyboardInterrupt())})
    outcome = runner.run([row("a"), row("b"), row("c")], SETTING, tell=lambda _: None)
    assert outcome.interrupted
    assert [each.row for each in outcome.measurements] == ["a"]


def test_a_row_that_would_not_fit_memory_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_by(monkeypatch, {"a": raising(AssertionError("started"))})
    monkeypatch.setattr(machine, "available_bytes", lambda: 2**30)
    outcome = runner.run([row("a", needed_bytes=3 * 2**30)], SETTING, tell=lambda _: None)
    assert outcome.measurements[0].note == "skipped: needs 3.0 GiB of memory, 1.0 GiB are free; try --quick"


def test_a_busy_machine_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_by(monkeypatch, {"a": lambda: measured("a")})
    monkeypatch.setattr(machine, "busy_ratio", lambda: 0.6)
    told: list[str] = []
    runner.run([row("a")], SETTING, tell=told.append)
    assert any("60% busy" in line for line in told)


def test_the_full_table_fits_a_machine_of_24_gib() -> None:
    assert max(each.needed_bytes(SETTING) for each in SUITES["tables"].rows) < 20 * 2**30


def test_the_machine_can_be_described() -> None:
    described = machine.describe()
    assert all(described.values())
    assert machine.peak_resident_bytes() >= machine.resident_bytes() * 0.5 > 2**20
    busy = machine.busy_ratio(0.05)
    assert busy is None or 0 <= busy <= 1
