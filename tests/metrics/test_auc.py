"""AUC, grouped AUC and calibration against scikit-learn and against pairs counted one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score

from monolith.metrics import (
    BinnedAUC,
    Calibration,
    CalibrationError,
    ExactAUC,
    GroupedAUC,
    LogLoss,
    MeanSquaredError,
    NormalizedEntropy,
)
from monolith.metrics import auc as score_store

Floats = NDArray[np.float64]


def samples(count: int, *, num_scores: int | None = None, seed: int = 0) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Skewed probabilities, labels drawn from them, and weights; with `num_scores` there are ties."""
    generator = np.random.default_rng(seed)
    probabilities = generator.beta(1.0, 8.0, count)
    labels = (generator.uniform(size=count) < probabilities).astype(np.int64)
    labels[:2] = [0, 1]
    if num_scores is not None:
        probabilities = np.round(probabilities * num_scores) / num_scores
    return probabilities, labels, generator.exponential(size=count)


def tensors(*arrays: NDArray[np.generic]) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


@pytest.mark.parametrize("num_scores", [None, 10], ids=["distinct", "ties"])
@pytest.mark.parametrize("weighted", [False, True])
def test_exact_auc_is_that_of_scikit_learn(num_scores: int | None, weighted: bool) -> None:
    p, y, w = samples(5000, num_scores=num_scores)
    metric = ExactAUC()
    for part in range(0, 5000, 700):
        rows = slice(part, part + 700)
        metric.update(*tensors(p[rows], y[rows], *([w[rows]] if weighted else [])))
    assert metric.compute() == pytest.approx(roc_auc_score(y, p, sample_weight=w if weighted else None), abs=1e-12)


def test_exact_auc_takes_logits_and_float32() -> None:
    p, y, _ = samples(2000)
    logits = np.log(p / (1 - p)).astype(np.float32)
    metric = ExactAUC()
    metric.update(*tensors(logits, y))
    assert metric.compute() == pytest.approx(roc_auc_score(y, logits), abs=1e-12)


@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False),
            st.integers(0, 1),
            st.sampled_from([0.5, 1.0, 2.0]),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_exact_auc_counts_pairs(rows: list[tuple[float, int, float]]) -> None:
    wins = total = 0.0
    for p_i, y_i, w_i in rows:
        for p_j, y_j, w_j in rows:
            if y_i == 1 and y_j == 0:
                total += w_i * w_j
                wins += w_i * w_j * ((p_i > p_j) + 0.5 * (p_i == p_j))
    metric = ExactAUC()
    metric.update(*(torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)))
    if total == 0:
        assert math.isnan(metric.compute())
    else:
        assert metric.compute() == pytest.approx(wins / total, abs=1e-12)


def test_zero_and_minus_zero_are_one_score() -> None:
    metric = ExactAUC()
    metric.update(torch.tensor([0.0, -0.0, 0.0, -0.0]), torch.tensor([0, 1, 1, 0]))
    assert metric.compute() == 0.5
    assert len(metric.state()["scores"]) == 1


def test_exact_auc_merges_equal_scores_incrementally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_store, "_MIN_PENDING", 100)
    p, y, w = samples(3000, num_scores=50)
    metric = ExactAUC()
    for part in range(0, 3000, 30):
        metric.update(*tensors(p[part : part + 30], y[part : part + 30], w[part : part + 30]))
        assert metric._rows._num_pending <= 100
    assert len(metric.state()["scores"]) <= 51
    assert metric.compute() == pytest.approx(roc_auc_score(y, p, sample_weight=w), abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_binned_auc_is_within_its_bound(weighted: bool) -> None:
    p, y, w = samples(20_000)
    exact = roc_auc_score(y, p, sample_weight=w if weighted else None)
    for num_bins in (2, 10, 1000, 1 << 16):
        metric = BinnedAUC(num_bins)
        metric.update(*tensors(p, y, *([w] if weighted else [])))
        assert abs(metric.compute() - exact) <= metric.error_bound() + 1e-12
    assert metric.error_bound() < 2e-4


def test_binned_auc_is_that_of_scikit_learn_on_binned_scores() -> None:
    p, y, w = samples(5000)
    metric = BinnedAUC(64)
    metric.update(*tensors(p, y, w))
    assert metric.compute() == pytest.approx(roc_auc_score(y, np.floor(p * 64), sample_weight=w), abs=1e-12)


def test_bins_reach_both_ends() -> None:
    metric = BinnedAUC(4, low=-1.0, high=1.0)
    metric.update(torch.tensor([-1.0, 1.0, 1.0, -1.0]), torch.tensor([0, 1, 1, 0]))
    assert metric.compute() == 1.0
    assert metric.state()["counts"].tolist() == [[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]]
    with pytest.raises(ValueError, match=r"BinnedAUC: predictions must be in \[-1, 1\], got 1.5 and 0 more such"):
        metric.update(torch.tensor([1.5]), torch.tensor([1]))


def test_states_of_binned_auc_may_be_added_up() -> None:
    p, y, w = samples(4000)
    whole, halves = BinnedAUC(), [BinnedAUC(), BinnedAUC()]
    whole.update(*tensors(p, y, w))
    halves[0].update(*tensors(p[:1500], y[:1500], w[:1500]))
    halves[1].update(*tensors(p[1500:], y[1500:], w[1500:]))
    reduced = BinnedAUC()
    reduced.load_state({"counts": halves[0].state()["counts"] + halves[1].state()["counts"]})
    assert reduced.compute() == pytest.approx(whole.compute(), abs=1e-12)


@pytest.mark.parametrize("make", [BinnedAUC, ExactAUC])
@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_no_auc(make: type[BinnedAUC | ExactAUC], label: int) -> None:
    metric = make()
    metric.update(torch.rand(5), torch.full((5,), label))
    assert math.isnan(metric.compute())
    metric.update(torch.tensor([0.5]), torch.tensor([1 - label]))
    assert 0 <= metric.compute() <= 1


@pytest.mark.parametrize("make", [BinnedAUC, ExactAUC, LogLoss, NormalizedEntropy, CalibrationError])
def test_labels_other_than_zero_and_one_are_refused(make: type[ExactAUC]) -> None:
    with pytest.raises(
        ValueError, match=r"labels must be 0 or 1 \(weight 0 leaves a row out\), got -1.0 and 1 more such"
    ):
        make().update(torch.rand(4), torch.tensor([0, -1, 2, 1]))


@pytest.mark.parametrize("make", [LogLoss, NormalizedEntropy, CalibrationError])
def test_what_is_no_probability_is_refused(make: type[LogLoss]) -> None:
    with pytest.raises(ValueError, match=r"predictions must be in \[0, 1\] \(sigmoid of the logits\), got 1.5"):
        make().update(torch.tensor([0.5, 1.5]), torch.tensor([0, 1]))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="num_bins must be >= 2, got 1"):
        BinnedAUC(1)
    with pytest.raises(ValueError, match=r"low must be below high, got 1.0 and 1.0"):
        BinnedAUC(low=1.0)
    with pytest.raises(ValueError, match="num_bins must be >= 2 or None, got 0"):
        GroupedAUC(num_bins=0)
    with pytest.raises(ValueError, match="group_weight must be one of 'samples', 'clicks', 'equal', got 'users'"):
        GroupedAUC(group_weight="users")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_bins must be >= 1, got 0"):
        CalibrationError(0)


def grouped_reference(p: Floats, y: NDArray[np.int64], g: NDArray[np.int64], w: Floats, group_weight: str) -> float:
    total = weights = 0.0
    for group in np.unique(g):
        rows = g == group
        if len(np.unique(y[rows])) < 2:
            continue
        weight = {"samples": w[rows].sum(), "clicks": (w * y)[rows].sum(), "equal": 1.0}[group_weight]
        total += weight * roc_auc_score(y[rows], p[rows], sample_weight=w[rows])
        weights += weight
    return total / weights


@pytest.mark.parametrize("group_weight", ["samples", "clicks", "equal"])
@pytest.mark.parametrize("num_scores", [None, 10], ids=["distinct", "ties"])
def test_grouped_auc_is_the_mean_of_scikit_learns(group_weight: str, num_scores: int | None) -> None:
    p, y, w = samples(3000, num_scores=num_scores)
    g = np.random.default_rng(1).integers(-100, 100, 3000) * 2**55  # some groups have one label only
    metric = GroupedAUC(group_weight=group_weight)  # type: ignore[arg-type]
    for part in range(0, 3000, 450):
        rows = slice(part, part + 450)
        metric.update(*tensors(p[rows], y[rows], g[rows], w[rows]))
    assert metric.compute() == pytest.approx(grouped_reference(p, y, g, w, group_weight), abs=1e-12)
    groups, aucs, _ = metric.per_group()
    assert groups.tolist() == sorted(groups.tolist())
    first = g == groups[0].item()
    assert aucs[0].item() == pytest.approx(roc_auc_score(y[first], p[first], sample_weight=w[first]), abs=1e-12)


def test_one_group_is_plain_auc() -> None:
    p, y, w = samples(1000)
    grouped, plain = GroupedAUC(), ExactAUC()
    grouped.update(*tensors(p, y, np.zeros(1000, dtype=np.int64), w))
    plain.update(*tensors(p, y, w))
    assert grouped.compute() == pytest.approx(plain.compute(), abs=1e-12)


def test_grouped_auc_in_bins_keeps_few_rows() -> None:
    p, y, w = samples(5000)
    g = np.arange(5000) % 7
    metric = GroupedAUC(num_bins=20)
    metric.update(*tensors(p, y, g, w))
    assert len(metric.state()["scores"]) <= 7 * 20
    assert metric.compute() == pytest.approx(grouped_reference(np.floor(p * 20), y, g, w, "samples"), abs=1e-12)


def test_groups_of_one_label_are_ignored() -> None:
    metric = GroupedAUC()
    metric.update(torch.tensor([0.1, 0.2, 0.9]), torch.tensor([1, 1, 0]), torch.tensor([1, 1, 2]))
    assert math.isnan(metric.compute())
    assert metric.per_group().groups.tolist() == []


def test_wrong_groups_are_refused() -> None:
    with pytest.raises(TypeError, match=r"groups must be integers, got torch.float32"):
        GroupedAUC().update(torch.rand(2), torch.tensor([0, 1]), torch.zeros(2))
    with pytest.raises(ValueError, match="groups must be as many as predictions, 2, got 3"):
        GroupedAUC().update(torch.rand(2), torch.tensor([0, 1]), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("weighted", [False, True])
def test_log_loss_and_squared_error_are_those_of_scikit_learn(weighted: bool) -> None:
    p, y, w = samples(3000)
    extra = [w] if weighted else []
    weights = w if weighted else None
    loss, error = LogLoss(), MeanSquaredError()
    loss.update(*tensors(p, y, *extra))
    error.update(*tensors(p, y, *extra))
    assert loss.compute() == pytest.approx(log_loss(y, p, sample_weight=weights), rel=1e-12)
    assert error.compute() == pytest.approx(mean_squared_error(y, p, sample_weight=weights), rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_loss_of_certainty_is_bounded_as_in_scikit_learn(dtype: type[np.floating]) -> None:
    p = np.array([0.0, 1.0, 0.0, 1.0], dtype=dtype)
    y = np.array([0, 1, 1, 0])
    metric = LogLoss()
    metric.update(*tensors(p, y))
    assert metric.compute() == pytest.approx(log_loss(y, p), rel=1e-5)
    assert math.isfinite(metric.compute())


def test_normalized_entropy_of_the_share_is_one() -> None:
    y = torch.tensor([1, 0, 0, 0])
    metric = NormalizedEntropy()
    metric.update(torch.full((4,), 0.25), y)
    assert metric.compute() == pytest.approx(1.0)
    p, y_many, w = samples(2000)
    metric.reset()
    metric.update(*tensors(p, y_many, w))
    share = (w * y_many).sum() / w.sum()
    base = log_loss(y_many, np.full(2000, share), sample_weight=w)
    assert metric.compute() == pytest.approx(log_loss(y_many, p, sample_weight=w) / base, rel=1e-10)
    one_class = NormalizedEntropy()
    one_class.update(torch.rand(3), torch.ones(3))
    assert math.isnan(one_class.compute())


def test_calibration_is_the_ratio_of_predicted_to_seen_clicks() -> None:
    p, y, w = samples(2000)
    metric = Calibration()
    metric.update(*tensors(p, y, w))
    assert metric.compute() == pytest.approx((w * p).sum() / (w * y).sum(), rel=1e-12)
    no_clicks = Calibration()
    no_clicks.update(torch.rand(3), torch.zeros(3))
    assert math.isnan(no_clicks.compute())


def test_calibration_curve_is_that_of_scikit_learn() -> None:
    p, y, w = samples(3000)
    metric = CalibrationError(8)
    metric.update(*tensors(p, y))
    curve = metric.curve()
    seen = curve.weight > 0
    share, mean = calibration_curve(y, p, n_bins=8)
    np.testing.assert_allclose(curve.mean_label[seen].numpy(), share, rtol=1e-12)
    np.testing.assert_allclose(curve.mean_prediction[seen].numpy(), mean, rtol=1e-12)
    metric.reset()
    metric.update(*tensors(p, y, w))
    expected = 0.0
    for low in range(8):
        rows = (p >= low / 8) & (p < (low + 1) / 8)
        expected += abs((w * p)[rows].sum() - (w * y)[rows].sum())
    assert metric.compute() == pytest.approx(expected / w.sum(), rel=1e-10)


@pytest.mark.slow
def test_a_million_samples_are_one_batch_like_any_other() -> None:
    p, y, w = samples(1_000_000)
    g = np.random.default_rng(2).integers(0, 100_000, 1_000_000)
    exact, binned, grouped = ExactAUC(), BinnedAUC(), GroupedAUC()
    exact.update(*tensors(p, y, w))
    binned.update(*tensors(p, y, w))
    grouped.update(*tensors(p, y, g, w))
    assert exact.compute() == pytest.approx(roc_auc_score(y, p, sample_weight=w), abs=1e-10)
    assert abs(binned.compute() - exact.compute()) <= binned.error_bound()
    assert grouped.per_group().weights.sum() < w.sum()
    assert 0.5 < grouped.compute() < 1.0
