from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.suites.catalog import SUITES
from monolith import _core
from monolith.cli import bench, main
from monolith.cli._bench import by_threads, machine, ours, runner
from monolith.cli._bench.catalog import CHECKOUT_ROWS, ROWS
from monolith.cli._bench.measurement import Measurement
from monolith.cli._bench.setting import Setting

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [row.key for row in ROWS]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Setting]]:
    """Rows that were asked for, each answered by one measurement instead of being measured."""
    calls: list[tuple[str, Setting]] = []

    def call(function: str, setting: Setting, *, row: str) -> Any:
        (key,) = (each.key for each in ROWS if each.function == row)
        calls.append((key, setting))
        return [Measurement(row=key, measure=f"speed of {key}", figure=5.0, unit="x/s", limit=4.0).to_json()]

    monkeypatch.setattr(runner, "call", call)
    monkeypatch.setattr(machine, "busy_ratio", lambda: 0.0)
    monkeypatch.setattr(machine, "available_bytes", lambda: 2**40)
    return calls


def test_all_rows_run_by_default_at_full_size(
    asked: list[tuple[str, Setting]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench"]) == 0
    assert [row for row, _ in asked] == KEYS
    assert asked[0][1].large_rows == 10_000_000
    out = capsys.readouterr().out
    assert all(f"- speed of {key}: 5 x/s, more is better" in out for key in KEYS)
    assert "requirements met" not in out, "that belongs to --check"
    assert "must reach" not in out


def test_check_prints_verdicts_and_fails_where_one_is_missed(
    asked: list[tuple[str, Setting]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--check"]) == 0
    assert f"{len(KEYS)} of {len(KEYS)} requirements met" in capsys.readouterr().out
    slow = Measurement(row="restore", measure="m", figure=1.0, limit=2.0)
    monkeypatch.setattr(runner, "call", lambda *_, **__: [slow.to_json()])
    assert main(["bench", "--rows", "restore"]) == 0, "figures have no effect without --check"
    assert main(["bench", "--check", "--rows", "restore"]) == 1
    assert "0 of 1 requirements met" in capsys.readouterr().out


def test_rows_threads_folder_and_quickness_can_be_chosen(asked: list[tuple[str, Setting]], tmp_path: Path) -> None:
    arguments = ["bench", "--quick", "--threads", "3", "--directory", str(tmp_path), "--rows", "restore", "training"]
    assert main(arguments) == 0
    assert [row for row, _ in asked] == ["training", "restore"], "rows come in the order of the table"
    setting = asked[0][1]
    assert (setting.threads, setting.directory) == (3, str(tmp_path))
    assert setting.large_rows < 10_000_000


def test_several_numbers_of_threads_are_compared_by_steps_and_the_last_is_everybodys(
    asked: list[tuple[str, Setting]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--quick", "--threads", "1", "2", "4", "--rows", "steps"]) == 0
    setting = asked[0][1]
    assert (setting.threads, setting.thread_counts) == (4, (1, 2, 4))
    assert type(setting).from_json(json.loads(json.dumps(setting.to_json()))) == setting
    assert "threads: 1 2 4\n" in capsys.readouterr().out


def test_steps_are_measured_apart_and_compared_with_the_first_number_of_threads() -> None:
    setting = Setting(thread_counts=(1, 2), small_rows=500, large_rows=1000, examples=50, num_batches=2, rounds=2)
    before = _core.num_threads()
    try:
        found = by_threads.measure_steps(dataclasses.replace(setting, seconds=1e-9))
    finally:
        ours.use_threads(before)
    assert [each.measure for each in found[:4]] == [
        "plan, A, 500 rows, 1 thread",
        "plan, A, 500 rows, 2 threads",
        "read, A, 500 rows, 1 thread",
        "read, A, 500 rows, 2 threads",
    ]
    shares = [each for each in found if each.limit is not None]
    plans = [each for each in found if each.unit == "ns/id"]
    apart = [each for each in found if each.limit is None and each not in plans]
    assert [each.measure.rsplit(", ", 2)[0] for each in plans] == [
        "plan alone, A",
        "plan alone, B",
        "plan alone, A, an eighth of a batch",
    ]
    assert [each.measure for each in shares] == [
        "a plan against what its rows take, A, 500 rows, 1 thread",
        "a plan against what its rows take, A, 1,000 rows, 1 thread",
    ]
    assert len(apart) == 2 * 2 * len(by_threads.STEPS)
    for one, two in zip(apart[::2], apart[1::2], strict=True):
        assert (one.peer, one.ratio) == ("", None)
        assert (two.peer, two.peer_figure) == ("1 thread", one.figure)
        assert two.ratio is not None


def test_a_busy_machine_is_a_warning_in_the_report(
    asked: list[tuple[str, Setting]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = iter([0.1, 0.6, 0.3])
    monkeypatch.setattr(machine, "busy_ratio", lambda: next(busy))
    assert main(["bench", "--rows", "one_id"]) == 0
    assert "warning:" not in capsys.readouterr().out
    assert main(["bench", "--rows", "one_id", "restore"]) == 0
    assert "warning: others used up to 60% of the processors" in capsys.readouterr().out


def test_json_is_the_only_thing_on_standard_output(
    asked: list[tuple[str, Setting]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--json", "--rows", "one_id"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert [each["measure"] for each in document["measurements"]] == ["speed of one_id"]
    assert document["machine"]["processor"]
    assert "[1/1] one_id" in captured.err


def test_a_quick_run_reports_that_its_verdicts_are_a_smoke_test(
    asked: list[tuple[str, Setting]], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", "--quick", "--rows", "one_id", "--check"])
    assert "smoke test" in capsys.readouterr().out
    main(["bench", "--quick", "--rows", "one_id"])
    assert "size: quick: small tables" in capsys.readouterr().out


def test_control_c_prints_what_was_measured(
    asked: list[tuple[str, Setting]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = runner.call

    def interrupted(function: str, setting: Setting, **arguments: Any) -> Any:
        if arguments["row"] == ROWS[1].function:
            raise KeyboardInterrupt
        return answer(function, setting, **arguments)

    monkeypatch.setattr(runner, "call", interrupted)
    assert main(["bench"]) == 130
    assert f"speed of {KEYS[0]}" in capsys.readouterr().out


def test_a_failed_row_is_printed_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, Setting]], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise runner.ChildFailedError("it ended with status 1")

    monkeypatch.setattr(runner, "call", fail)
    assert main(["bench", "--rows", "restore"]) == 1
    assert "failed: it ended with status 1" in capsys.readouterr().out


def test_an_unknown_row_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "--rows", "trainig"])
    error = capsys.readouterr().err
    assert re.search(r"invalid choice: 'trainig'", error)
    assert error.count("\n") == 1


def test_the_error_for_a_row_of_a_checkout_names_the_command_that_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    for key in CHECKOUT_ROWS:
        with pytest.raises(SystemExit, match="2"):
            main(["bench", "--rows", key])
        assert f"run python benchmarks/run.py --suite tables --rows {key};" in capsys.readouterr().err
    assert set(KEYS) | set(CHECKOUT_ROWS) == {row.key for row in SUITES["tables"].rows}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "'threads': expected a number above 0, got 0"),
        (["--threads", "0", "2"], "'thread_counts': expected a number above 0, got (0, 2)"),
        (["--directory", "/no/such/folder"], "expected an existing folder, got /no/such/folder"),
    ],
)
def test_bad_options_fail_before_anything_is_measured(
    asked: list[tuple[str, Setting]], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert asked == []


def test_a_row_too_large_for_this_machine_names_the_way_out(
    asked: list[tuple[str, Setting]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 2**20)
    assert main(["bench", "--rows", "memory"]) == 0
    assert "try --quick" in capsys.readouterr().out
    assert asked == []


def test_a_run_without_failure_ends_with_zero_whatever_the_ratios() -> None:
    slow = Measurement(row="restore", measure="m", figure=1.0, limit=2.0)
    assert slow.ok is False
    assert bench.exit_status(runner.BenchOutcome(measurements=[slow]), check=False) == 0
