"""Every rule of the core's table has all its parts: a config, a reference and its lines in the documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables import HashTable, Segment, TableConfig
from monolith.tables import row_optimizers as ro
from tables.optimizer_reference import reference_class

DOCS = Path(__file__).parents[2] / "docs"
KINDS = _core.row_optimizer_kinds()
BY_THE_ROW: list[ro.RowOptimizer] = [
    ro.Adagrad(hessian_compression_times=2),
    ro.DynamicWdAdagrad(hessian_compression_times=5),
    ro.GroupAdagrad(),
    ro.GroupFtrl(l1_regularization_strength=0.1),
    ro.DelayCompensated(ro.GroupAdagrad(), 0.1),
]
"""Rules whose weights know of each other."""
BY_THE_ELEMENT: list[ro.RowOptimizer] = [
    *(rule() for rule in ro.every_rule() if rule().is_elementwise),
    ro.DelayCompensated(ro.Adam(), 0.1),
]


def test_a_rule_of_the_core_has_a_config_and_a_config_has_a_rule() -> None:
    configs = [getattr(ro, name) for name in ro.__all__]
    kinds = [config.kind for config in configs if isinstance(config, type) and hasattr(config, "kind")]
    missing = [f"{kind}: add a config with this kind to tables/row_optimizers.py" for kind in {*KINDS} - {*kinds}]
    unknown = [f"{kind}: add a line with this name to core/optimizer/kinds.cc" for kind in {*kinds} - {*KINDS}]
    assert missing + unknown == []
    assert len(set(kinds)) == len(kinds)


def test_a_rule_without_a_config_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "row_optimizer_kinds", lambda: {**KINDS, "newton": KINDS["sgd"]})
    with pytest.raises(NotImplementedError, match="row optimizers without a config: newton; add it to"):
        ro.every_rule()


@pytest.mark.parametrize("rule", [*ro.every_rule(), ro.DelayCompensated])
def test_a_rule_has_a_reference(rule: type[ro.RowOptimizer]) -> None:
    assert reference_class(rule).__name__ == rule.__name__


@pytest.mark.parametrize("rule", ro.every_rule())
def test_a_rule_has_a_line_in_the_guide(rule: type[ro.RowOptimizer]) -> None:
    lines = (DOCS / "how-to" / "row-optimizers.md").read_text(encoding="utf-8").splitlines()
    first_cells = [line.split("|")[1] for line in lines if line.startswith("|")]
    assert any(f"`{rule.__name__}`" in cell for cell in first_cells), "add it to the table under 'The rules'"


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.dump_field])
def test_an_upstream_message_is_documented_with_its_number(name: str) -> None:
    text = (DOCS / "formats" / "entry_dump.md").read_text(encoding="utf-8")
    assert f"| {name} | {KINDS[name].dump_field} |" in text, "add it to the table under 'Messages'"


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be one of sgd, adagrad, .*, got 'adagrda'"):
        _core.row_optimizer_kind("adagrda")


def trained(optimizer: ro.RowOptimizer, *dims: int) -> bytes:
    """The weights of rows whose segments have these dims, after some updates that are the same for all dims."""
    segments = [Segment(dim, optimizer=optimizer) for dim in dims]
    table = HashTable(TableConfig(segments, name="t"))
    rng = np.random.default_rng(3)
    ids = np.arange(20)
    table.assign(ids, rng.normal(0, 0.5, (20, 6)).astype(np.float32), time=1)
    for step in range(8):
        gradients = rng.normal(0, 1, (20, 6)).astype(np.float32)
        latest = rng.normal(0, 0.5, (20, 6)).astype(np.float32)
        rates = [0.1] * len(dims)
        table.apply_gradients(ids, gradients, step=step, time=step, learning_rates=rates, latest=latest)
    rows: bytes = table.lookup(ids).tobytes()
    return rows


@pytest.mark.parametrize("optimizer", BY_THE_ELEMENT, ids=lambda each: type(each).__name__)
def test_a_rule_that_works_by_the_element_learns_the_same_however_the_row_is_cut(optimizer: ro.RowOptimizer) -> None:
    assert optimizer.is_elementwise
    assert trained(optimizer, 6) == trained(optimizer, 1, 2, 3)


@pytest.mark.parametrize("optimizer", BY_THE_ROW, ids=lambda each: type(each).__name__)
def test_a_rule_that_works_by_the_row_learns_otherwise_when_the_row_is_cut(optimizer: ro.RowOptimizer) -> None:
    assert not optimizer.is_elementwise
    assert trained(optimizer, 6) != trained(optimizer, 1, 2, 3)


def test_every_rule_is_tried_on_cut_rows_but_two() -> None:
    """A batch softmax has one weight; moving averages were never joined, and saved rows are found by their segments."""
    tried = {type(each) for each in (*BY_THE_ELEMENT, *BY_THE_ROW)}
    rest: set[type[ro.RowOptimizer]] = {ro.BatchSoftmax, ro.MovingAverage}
    assert {*ro.every_rule()} - tried == rest
    assert not ro.BatchSoftmax().is_elementwise
    assert not ro.MovingAverage().is_elementwise
