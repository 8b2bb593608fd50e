"""Where embeddings differ from the original on purpose: what docs/parity.md says of it holds."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.nn.embeddings.pooling import PooledBatch, RowGradients
from monolith.nn.embeddings.torch_pooling import pool, sum_gradients

ADAGRAD_OF_THE_ORIGINAL = ml.row_optimizers.Adagrad(learning_rate=0.05, initial_accumulator_value=1.0)


def first_step(optimizer: ml.row_optimizers.RowOptimizer | None, factor: float) -> float:
    """How far the first step moves a weight whose example has a gradient of 1 times ``factor``; None: by default."""
    slots = {"a": ml.Slot(dim=1, initializer=ml.initializers.Zeros())}
    emb = ml.Embeddings(slots) if optimizer is None else ml.Embeddings(slots, optimizer)
    torch.autograd.backward(emb({"a": torch.tensor([7])})["a"].sum() * factor)
    emb.step()
    return abs(emb.lookup("a", torch.tensor([7])).item())


def test_the_default_takes_a_first_step_of_the_learning_rate_from_averaged_and_from_summed_losses() -> None:
    averaged, summed = first_step(None, 1 / 4096), first_step(None, 1.0)
    assert summed == pytest.approx(0.05, rel=1e-3)
    assert averaged == pytest.approx(0.05, rel=0.1)


def test_the_upstream_accumulator_stalls_where_losses_are_averaged() -> None:
    assert first_step(ADAGRAD_OF_THE_ORIGINAL, 1.0) == pytest.approx(0.05 / 2**0.5)
    assert first_step(ADAGRAD_OF_THE_ORIGINAL, 1 / 4096) < 2e-5


def test_decay_by_rest_with_our_own_rule_is_off_by_default() -> None:
    rule = ml.row_optimizers.DynamicWdAdagrad()
    assert (rule.decouple_weight_decay, rule.enable_dynamic_wd, rule.flip_direction) == (False, False, False)


def test_the_root_of_summed_squares_is_the_norm_over_the_places_of_a_sequence() -> None:
    emb = ml.Embeddings({"a": ml.Slot(dim=2, combiner=ml.nn.FirstN(3))}, ml.row_optimizers.Sgd(learning_rate=1.0))
    ids = torch.tensor([5, 6, 7])
    batch = {"a": ml.Ragged.from_lists([[5, 6, 7], [], [5]])}
    torch.autograd.backward(emb(batch)["a"].sum() * 0.0)  # makes the rows
    emb.step()
    rows = emb.lookup("a", ids)
    out = torch.linalg.vector_norm(emb(batch)["a"], dim=1)
    expected = torch.stack([rows.square().sum(0).sqrt(), torch.zeros(2), rows[0].abs()])
    torch.testing.assert_close(out, expected)
    upstream = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    torch.autograd.backward((out * upstream).sum())
    emb.step()
    gradient = rows / expected[0] * upstream[0]  # e / out * upstream
    gradient[0] += rows[0].sign() * upstream[2]
    torch.testing.assert_close(emb.lookup("a", ids), rows - gradient)


@pytest.mark.parametrize("device", ["core", "torch"])
def test_sqrtn_is_the_sum_over_the_root_of_the_number_of_ids(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's combiner against float64: no ids, one, duplicates, many; pooled by the core and by torch."""
    if device == "torch":  # as on a GPU
        monkeypatch.setattr(PooledBatch, "pool", pooled_by_torch)
        monkeypatch.setattr(PooledBatch, "sum_gradients", summed_by_torch)
    lists = [[5, 6, 7], [], [5], [6, 6, 6, 6, 8], [7] * 200]
    slot = ml.Slot(dim=2, combiner="sqrtn", compressor=ml.compressors.Fp32())
    emb = ml.Embeddings({"a": slot}, ml.row_optimizers.Sgd(learning_rate=1.0))
    ids = ml.Ragged.from_lists(lists)
    torch.autograd.backward(emb({"a": ids})["a"].sum() * 0.0)  # makes the rows
    emb.step()
    names = torch.tensor([5, 6, 7, 8])
    rows = emb.lookup("a", names)
    leaf = rows.double().requires_grad_()
    expected = torch.stack([leaf[torch.tensor(each).long() - 5].sum(0) / max(len(each), 1) ** 0.5 for each in lists])
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out = emb({"a": ids})["a"]
    torch.testing.assert_close(out.double(), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.autograd.backward((out * upstream.float()).sum())
    torch.autograd.backward((expected * upstream).sum())
    emb.step()
    assert leaf.grad is not None
    torch.testing.assert_close(emb.lookup("a", names).double(), rows - leaf.grad, rtol=1e-5, atol=1e-5)


def pooled_by_torch(batch: PooledBatch, values: torch.Tensor, *, pinned: bool = False) -> torch.Tensor:
    assert not pinned
    return pool(batch.layout, values, batch.plan, batch.shape)


def summed_by_torch(batch: PooledBatch, whole: Any, columns: Any, device: torch.device) -> RowGradients:
    return RowGradients(sum_gradients(batch.layout, whole, columns, batch.plan, batch.shape, device), is_finite=False)


def test_a_function_of_the_step_with_a_parameter_of_its_own_is_a_learning_rate() -> None:
    def rate(step: int, *, first: float) -> float:
        return first / (step + 1)

    slots = {"a": ml.Slot(1, initializer=ml.initializers.Zeros(), learning_rate=functools.partial(rate, first=4.0))}
    emb = ml.Embeddings(slots, ml.row_optimizers.Sgd(learning_rate=1.0))
    for expected in (-4.0, -6.0):
        torch.autograd.backward(emb({"a": torch.tensor([7])})["a"].sum())
        emb.step()
        assert emb.lookup("a", torch.tensor([7])).item() == expected


def test_the_page_names_every_difference_with_a_test_that_exists(project_root: Path) -> None:
    page = (project_root / "docs" / "parity.md").read_text(encoding="utf-8")
    section = page.partition("## Embeddings and rows")[2].partition("\n## ")[0]
    named = re.findall(r"`(tests/[^`]+)::(test_\w+)`", section)
    assert len(named) >= 7
    for file, name in named:
        assert f"def {name}(" in (project_root / file).read_text(encoding="utf-8")
