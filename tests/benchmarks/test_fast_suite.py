"""The suite `fast` measures its rows with the given threads, and prints what must be reached."""

from __future__ import annotations

import pytest

from benchmarks import run
from benchmarks.suites.catalog import SUITES
from benchmarks.suites.tables import callers
from monolith.cli._bench import by_threads, one_table, runner
from monolith.cli._bench.catalog import BenchRow
from monolith.cli._bench.measurement import Measurement
from monolith.cli._bench.setting import Setting

TINY = Setting(small_rows=1500, large_rows=3000, huge_rows=3000, examples=8, num_batches=3, rounds=2, seconds=0.02)


class Runs:
    """In place of the runner: notes what it is asked for, and answers with one line."""

    def __init__(self, busy: float = 0.0) -> None:
        self.keys: list[str] = []
        self.setting = Setting()
        self._busy = busy

    def __call__(self, rows: list[BenchRow], setting: Setting, *, tell: object) -> runner.BenchOutcome:
        self.keys, self.setting = [row.key for row in rows], setting
        missed = Measurement(row="steps", measure="a plan", figure=1.0, unit="ms", limit=2.0)
        return runner.BenchOutcome(measurements=[missed], busy=self._busy)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs(busy=0.5)
    monkeypatch.setattr(runner, "run", made)
    return made


def test_it_measures_every_row_that_architectures_are_held_to(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--suite", "fast"]) == 0
    assert runs.keys == ["steps", "training", "lookup", "embeddings", "threads", "callers", "insert", "gather"]
    assert set(runs.keys) <= {row.key for row in SUITES["tables"].rows}
    assert (runs.setting.threads, runs.setting.thread_counts) == (2, ())
    assert runs.setting.huge_rows == runs.setting.large_rows == 10_000_000
    printed = capsys.readouterr().out
    assert ">= 2 ms" in printed
    assert "others used up to 50% of the processors" in printed


def test_rows_and_threads_can_be_chosen_and_a_miss_can_fail(runs: Runs) -> None:
    assert (
        run.main(["--suite", "fast", "--rows", "gather", "steps", "--threads", "1", "8", "16", "--quick", "--check"])
        == 1
    )
    assert runs.keys == ["steps", "gather"]
    assert (runs.setting.threads, runs.setting.thread_counts) == (16, (1, 8, 16))
    assert runs.setting.small_rows == Setting().quick().small_rows


def test_markdown_has_the_limit_and_the_warning(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--suite", "fast", "--markdown"])
    printed = capsys.readouterr().out
    assert "| a plan | 1 ms |  |  | >= 2 ms | NO |" in printed
    assert "- warning: others used" in printed


def test_threads_are_compared_step_by_step_and_judged_where_a_limit_is_known() -> None:
    setting = Setting(**{**TINY.to_json(), "thread_counts": (1, 2, 3), "threads": 3})
    measured = by_threads.measure_threads(setting)
    assert [each.peer for each in measured[:2]] == ["one thread", "2 threads"]
    assert [each.limit for each in measured[:2]] == [1.6, None]
    assert len(measured) == 3 * 2 * 2, "three tables, as the huge one is the large one; two calls; two steps"


def test_one_of_several_callers_that_starves_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_rates", lambda *_, callers, **__: [4.0] * (callers - 1) + [1.0])
    together, share = callers.measure(TINY)
    assert together.ratio == pytest.approx(13.0)
    assert share.ok is False


def test_insert_cost_is_compared_with_clearing_the_memory_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def seconds_to_clear(_: one_table.FreshMemory, num_bytes: int) -> float:
        asked.append(num_bytes)
        return 1e9

    monkeypatch.setattr(one_table.FreshMemory, "seconds_to_clear", seconds_to_clear)
    training, *others = one_table.measure_insert(TINY)
    assert training.ok is True
    assert training.peer == one_table.FRESH
    calls = -(-TINY.large_rows // TINY.ids_per_batch)
    assert len(asked) == TINY.rounds * calls, "as often as the table is called, in turns with it"
    assert sum(asked) > TINY.rounds * 3000 * 144, "header, weights and state of every row"
    assert {each.peer for each in others} == {""}


def test_fresh_memory_is_touched_once_and_takes_time_by_its_size() -> None:
    with one_table.FreshMemory(1 << 27) as memory:
        assert memory.seconds_to_clear(0) == 0.0
        first = min(memory.seconds_to_clear(1 << 12) for _ in range(5))
        assert 0 < first < memory.seconds_to_clear(1 << 26)
        with pytest.raises(ValueError, match="buffer"):
            memory.seconds_to_clear(1 << 27)
