"""What every metric does: any split into batches and workers gives the same number; wrong batches change nothing."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from monolith import metrics
from monolith.metrics import (
    BinnedAUC,
    Calibration,
    CalibrationError,
    ExactAUC,
    GroupedAUC,
    LogLoss,
    MeanSquaredError,
    Metric,
    NormalizedEntropy,
)

MAKERS: dict[str, Callable[[], Any]] = {
    "BinnedAUC": BinnedAUC,
    "BinnedAUC of few bins": lambda: BinnedAUC(7),
    "ExactAUC": ExactAUC,
    "GroupedAUC": GroupedAUC,
    "GroupedAUC by clicks": lambda: GroupedAUC(group_weight="clicks"),
    "GroupedAUC of few bins": lambda: GroupedAUC(num_bins=5, group_weight="equal"),
    "LogLoss": LogLoss,
    "NormalizedEntropy": NormalizedEntropy,
    "MeanSquaredError": MeanSquaredError,
    "Calibration": Calibration,
    "CalibrationError": CalibrationError,
}
every_metric = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
Rows = list[tuple[float, int, int, float]]


def feed(metric: Any, rows: Rows, *, weighted: bool = True) -> Any:
    """Add rows of (prediction, label, group, weight)."""
    predictions = torch.tensor([row[0] for row in rows], dtype=torch.float64)
    labels = torch.tensor([row[1] for row in rows], dtype=torch.int64)
    weights = torch.tensor([row[3] for row in rows], dtype=torch.float64) if weighted else None
    if isinstance(metric, GroupedAUC):
        metric.update(predictions, labels, torch.tensor([row[2] for row in rows], dtype=torch.int64), weights)
    else:
        metric.update(predictions, labels, weights)
    return metric


def some_rows(count: int, seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    predictions = generator.integers(0, 20, count) / 20
    labels = generator.integers(0, 2, count)
    groups = generator.choice([-(2**63), -1, 0, 2**63 - 1], count)
    weights = generator.choice([0.0, 0.5, 1.0, 2.0], count)
    return list(zip(predictions.tolist(), labels.tolist(), groups.tolist(), weights.tolist(), strict=True))


rows_strategy = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
        st.integers(0, 1),
        st.sampled_from([-(2**63), 3, 2**63 - 1]),
        st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    ),
    max_size=30,
)


def same(first: float, second: float) -> bool:
    return (math.isnan(first) and math.isnan(second)) or first == pytest.approx(second, rel=1e-12, abs=1e-15)


def test_every_metric_is_under_contract() -> None:
    public = {
        name
        for name in dir(metrics)
        if isinstance(value := getattr(metrics, name), type) and issubclass(value, Metric) and value is not Metric
    }
    assert {type(make()).__name__ for make in MAKERS.values()} == public


@every_metric
@given(rows=rows_strategy, cuts=st.lists(st.integers(0, 30), max_size=3))
def test_batches_and_workers_do_not_matter(make: Callable[[], Any], rows: Rows, cuts: list[int]) -> None:
    whole = feed(make(), rows).compute()
    bounds = [0, *sorted(cuts), len(rows)]
    parts = [rows[low:high] for low, high in itertools.pairwise(bounds)]
    one = make()
    for part in parts:
        feed(one, part)
    assert same(one.compute(), whole)
    workers = [feed(make(), part) for part in parts]
    merged = make()
    for worker in reversed(workers):
        before = worker.compute()
        assert merged.merge(worker) is merged
        assert same(worker.compute(), before)
    assert same(merged.compute(), whole)


@every_metric
@given(rows=rows_strategy)
def test_a_weight_counts_like_repetition(make: Callable[[], Any], rows: Rows) -> None:
    whole_weights = [(p, y, g, float(math.ceil(w))) for p, y, g, w in rows]
    repeated = [(p, y, g, 1.0) for p, y, g, w in whole_weights for _ in range(int(w))]
    assert same(feed(make(), whole_weights).compute(), feed(make(), repeated, weighted=False).compute())


@every_metric
def test_nothing_seen_is_not_a_number(make: Callable[[], Any]) -> None:
    metric = make()
    assert math.isnan(metric.compute())
    feed(metric, [])
    assert math.isnan(metric.compute())
    feed(metric, [(0.5, 1, 0, 0.0)])
    assert math.isnan(metric.compute())
    assert math.isnan(make().merge(metric).compute())


@every_metric
def test_reset_discards_all_rows(make: Callable[[], Any]) -> None:
    metric = feed(make(), some_rows(50))
    metric.reset()
    assert math.isnan(metric.compute())
    assert same(feed(metric, some_rows(40, 1)).compute(), feed(make(), some_rows(40, 1)).compute())


@every_metric
def test_state_travels_as_plain_tensors(make: Callable[[], Any]) -> None:
    metric = feed(make(), some_rows(50))
    file = io.BytesIO()
    torch.save(metric.state(), file)
    file.seek(0)
    restored = feed(make(), some_rows(10, 2))
    state = torch.load(file, weights_only=True)
    restored.load_state(state)
    assert restored.compute() == metric.compute()
    for tensor in state.values():
        tensor.fill_(99)  # the metric keeps copies
    assert restored.compute() == metric.compute()
    assert same(feed(restored, some_rows(20, 3)).compute(), feed(metric, some_rows(20, 3)).compute())


@every_metric
def test_state_is_a_copy(make: Callable[[], Any]) -> None:
    metric = feed(make(), some_rows(50))
    before = metric.compute()
    for tensor in metric.state().values():
        tensor.fill_(0)
    assert metric.compute() == before


@every_metric
def test_the_callers_tensors_may_change_afterwards(make: Callable[[], Any]) -> None:
    predictions = torch.tensor([0.1, 0.9, 0.4, 0.3], dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    groups, weights = torch.tensor([1, 1, 2, 2]), torch.ones(4, dtype=torch.float64)
    metric = make()
    arguments = (
        (predictions, labels, groups, weights) if isinstance(metric, GroupedAUC) else (predictions, labels, weights)
    )
    metric.update(*arguments)
    expected = make()
    expected.update(*(tensor.clone() for tensor in arguments))
    for tensor in arguments:
        tensor.zero_()
    assert metric.compute() == expected.compute()


@every_metric
def test_merging_with_oneself_counts_twice(make: Callable[[], Any]) -> None:
    metric = feed(make(), some_rows(50))
    expected = metric.compute()
    assert same(metric.merge(metric).compute(), expected)


Change = Callable[[list[Any]], None]


def put(column: int, value: float) -> Change:
    def change(columns: list[Any]) -> None:
        columns[column][2] = value

    return change


def shorten(column: int) -> Change:
    def change(columns: list[Any]) -> None:
        columns[column] = columns[column][:-1]

    return change


@every_metric
@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("predictions must be finite, got nan and 0 more such", put(0, math.nan)),
        ("predictions must be finite, got inf and 0 more such", put(0, math.inf)),
        ("labels must be finite, got nan", put(1, math.nan)),
        ("weights must be finite and >= 0, got -1.0", put(2, -1.0)),
        ("weights must be finite and >= 0, got nan", put(2, math.nan)),
        ("labels must be as many as predictions, 4, got 3", shorten(1)),
        ("labels must be as many as predictions, 3, got 4", shorten(0)),
        ("weights must be as many as predictions, 4, got 3", shorten(2)),
    ],
)
def test_a_wrong_batch_is_refused_and_changes_nothing(make: Callable[[], Any], message: str, change: Change) -> None:
    metric = feed(make(), some_rows(20))
    before = metric.compute()
    columns: list[Any] = [torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.ones(4)]
    change(columns)
    if isinstance(metric, GroupedAUC):
        columns.insert(2, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=f"{type(metric).__name__}: {message}"):
        metric.update(*columns)
    assert same(metric.compute(), before)


@every_metric
def test_rows_of_weight_zero_may_hold_anything(make: Callable[[], Any]) -> None:
    metric = feed(make(), [(math.nan, -10000, 1, 0.0), *some_rows(20), (7.0, 3, 2, 0.0)])
    assert same(metric.compute(), feed(make(), some_rows(20)).compute())


@every_metric
def test_only_tensors_are_taken(make: Callable[[], Any]) -> None:
    metric = make()
    extra = [torch.zeros(1, dtype=torch.int64)] if isinstance(metric, GroupedAUC) else []
    with pytest.raises(TypeError, match=r"predictions must be a tensor, got list; use torch\.as_tensor"):
        metric.update([0.5], torch.tensor([1]), *extra)
    with pytest.raises(TypeError, match=r"predictions must be real numbers, got torch\.complex64"):
        metric.update(torch.zeros(1, dtype=torch.complex64), torch.tensor([1]), *extra)


@every_metric
def test_shape_dtype_and_graph_of_the_batch_do_not_matter(make: Callable[[], Any]) -> None:
    rows = [(max(p, 0.05), y, g, 1.0) for p, y, g, _ in some_rows(24)]
    expected = feed(make(), [(float(np.float32(p)), y, g, w) for p, y, g, w in rows])
    metric = make()
    predictions = torch.tensor([row[0] for row in rows], dtype=torch.float32).reshape(4, 6).requires_grad_()
    labels = torch.tensor([bool(row[1]) for row in rows]).reshape(4, 6)
    groups = torch.tensor([row[2] for row in rows]).reshape(4, 6)
    sheared: list[Tensor] = [torch.stack([each, each], dim=-1)[..., 0] for each in (predictions, labels, groups)]
    metric.update(*(sheared if isinstance(metric, GroupedAUC) else sheared[:2]))
    assert metric.compute() == pytest.approx(expected.compute(), rel=1e-6)


@every_metric
def test_other_kinds_and_settings_are_not_merged(make: Callable[[], Any]) -> None:
    metric = make()
    other = LogLoss() if not isinstance(metric, LogLoss) else Calibration()
    with pytest.raises(TypeError, match=f"{type(metric).__name__}: can merge only its own kind, got"):
        metric.merge(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BinnedAUC(8), BinnedAUC(9)),
        (BinnedAUC(8, high=2.0), BinnedAUC(8)),
        (GroupedAUC(), GroupedAUC(group_weight="equal")),
        (CalibrationError(5), CalibrationError(6)),
    ],
    ids=repr,
)
def test_other_settings_are_not_merged(one: Any, other: Any) -> None:
    with pytest.raises(ValueError, match="can merge only with equal settings"):
        one.merge(other)


@every_metric
def test_foreign_states_are_refused(make: Callable[[], Any]) -> None:
    metric = feed(make(), some_rows(20))
    before = metric.compute()
    with pytest.raises(ValueError, match="a state must have the tensors"):
        metric.load_state({"foreign": torch.zeros(2)})
    wrong = {name: torch.zeros(2, 2, 2) for name in metric.state()}
    with pytest.raises(ValueError, match=f"{type(metric).__name__}: .*shape"):
        metric.load_state(wrong)
    assert metric.compute() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_metric
def test_computes_the_same_on_cuda(make: Callable[[], Any]) -> None:
    metric = make()
    metric.device = torch.device("cuda")
    metric.reset()
    feed(metric, some_rows(200))
    expected = feed(make(), some_rows(200))
    assert same(metric.compute(), expected.compute())
    assert same(make().merge(metric).compute(), expected.compute())
