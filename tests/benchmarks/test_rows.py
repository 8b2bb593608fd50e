"""Every row of the suite `tables` runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import inspect
import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks.suites.catalog import ROW_OF_KEY, SUITES
from benchmarks.suites.tables import gather, growth, optimizers
from monolith.cli._bench import against_peers, peers, runner
from monolith.cli._bench.measurement import Measurement, RowSkippedError
from monolith.cli._bench.setting import Setting
from monolith.tables import row_optimizers

if TYPE_CHECKING:
    from pathlib import Path

QUICK = {"save", "threads"}
"""Rows of the quick tier."""


@pytest.fixture
def tiny(tmp_path: Path) -> Setting:
    return Setting(
        small_rows=1500,
        large_rows=3000,
        huge_rows=4000,
        memory_rows=(2000,),
        examples=8,
        num_batches=3,
        rounds=2,
        seconds=0.02,
        directory=str(tmp_path),
    )


def measure(row: str, setting: Setting) -> list[Measurement]:
    return [Measurement.from_json(fields) for fields in runner.measure_row(setting, ROW_OF_KEY[row].function)]


@pytest.mark.parametrize(
    "key",
    [pytest.param(row.key, marks=[] if row.key in QUICK else [pytest.mark.slow]) for row in SUITES["tables"].rows],
)
def test_the_row_measures_and_leaves_no_file(
    key: str, tiny: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "RUNS", 1)
    if key == "gather" and shutil.which("c++") is None:
        pytest.skip("the gather is compiled in the run and there is no compiler")
    measurements = measure(key, tiny)
    assert any(each.ok is not None for each in measurements)
    assert {each.row for each in measurements} == {key}
    assert all(each.figure is not None for each in measurements)
    assert len({(each.measure, each.peer) for each in measurements}) == len(measurements)
    assert list(tmp_path.iterdir()) == []


def test_without_fbgemm_its_lines_report_how_to_install_it(tiny: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_fbgemm", lambda: None)
    missing = [each for each in measure("training", tiny) if each.peer == against_peers.FBGEMM]
    assert [each.ok for each in missing] == [None] * 4
    assert all(each.note == f"peer is not installed: {peers.FBGEMM_INSTALL}" for each in missing)


def test_a_contestant_that_computes_something_else_stops_the_row(
    tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LEARNING_RATE", 0.02)
    with pytest.raises(AssertionError, match="do not do the same work"):
        measure("training", tiny)


def test_one_thread_has_nothing_to_be_compared_with() -> None:
    with pytest.raises(RowSkippedError, match="give --threads 2"):
        measure("threads", Setting(threads=1))


def test_the_gather_is_skipped_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(RowSkippedError, match="install g"):
        gather.compile_gather(tmp_path)


def test_every_row_optimizer_of_the_package_is_compared_with_sgd() -> None:
    compared = {type(optimizer) for optimizer in optimizers.OPTIMIZERS}
    public = {getattr(row_optimizers, name) for name in row_optimizers.__all__}
    rules = {each for each in public if isinstance(each, type) and not inspect.isabstract(each)}
    assert compared == rules - {row_optimizers.Sgd, row_optimizers.DelayCompensated}
