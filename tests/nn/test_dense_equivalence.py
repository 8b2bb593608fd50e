"""Rows learn what a dense `torch.nn.Embedding` learns by the same rule, bit for bit where sums have the same order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import embedding

import monolith as ml
from monolith.nn.combiners import Combiner, FirstN, ReduceSum
from monolith.testing import ReferenceStore
from nn.conftest import StoreFactory

NUM_IDS, DIM = 40, 5


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def adagrad(weight: torch.Tensor, norm: torch.Tensor, rate: float) -> None:
    gradient = weight.grad
    assert gradient is not None
    with torch.no_grad():
        norm += gradient * gradient
        root = torch.from_numpy(np.sqrt(norm.numpy()))  # torch's own is not correctly rounded on every machine
        weight -= (torch.tensor(rate) / root) * gradient
    weight.grad = None


@pytest.mark.parametrize("shape", [(16,), (16, 1), (4, 4)])
def test_adagrad_equals_a_dense_embedding_bit_for_bit(shape: tuple[int, ...], make_store: StoreFactory) -> None:
    """The equivalence that the original tests: zeros, Adagrad(0.1, accumulator 1), ten steps, repeated ids."""
    optimizer = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1.0)
    combiner: Combiner = FirstN(shape[1]) if len(shape) == 2 else ReduceSum()
    slot = ml.Slot(DIM, combiner=combiner, initializer=ml.initializers.Zeros(), compressor=ml.compressors.Fp32())
    emb = ml.Embeddings({"feature": slot}, optimizer, store=make_store)
    weight, norm = torch.zeros(NUM_IDS, DIM, requires_grad=True), torch.ones(NUM_IDS, DIM)
    for step in range(10):
        ids = torch.randint(NUM_IDS, shape, generator=seeded(step))
        target = torch.randn(*shape, DIM, generator=seeded(100 + step))
        ours, dense = emb({"feature": ids})["feature"], embedding(ids, weight)
        assert torch.equal(ours, dense.view_as(ours)), f"step {step}"
        (ours - target.view_as(ours)).square().sum().backward()
        torch.autograd.backward((dense - target).square().sum())
        emb.step()
        adagrad(weight, norm, 0.1)
    assert torch.equal(emb.lookup("feature", torch.arange(NUM_IDS)).cpu(), weight.detach())


def test_gradients_accumulated_over_batches_equal_one_dense_step_bit_for_bit() -> None:
    optimizer = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1.0)
    emb = ml.Embeddings({"feature": ml.Slot(DIM, initializer=ml.initializers.Zeros())}, optimizer)
    weight, norm = torch.zeros(NUM_IDS, DIM, requires_grad=True), torch.ones(NUM_IDS, DIM)
    for step in range(4):
        for part in range(3):
            seed = 10 * step + part
            ids = torch.randint(NUM_IDS, (12,), generator=seeded(seed))
            target = torch.randn(12, DIM, generator=seeded(100 + seed))
            (emb({"feature": ids})["feature"] - target).square().sum().backward()
            torch.autograd.backward((embedding(ids, weight) - target).square().sum())
        emb.step()
        adagrad(weight, norm, 0.1)
    assert torch.equal(emb.lookup("feature", torch.arange(NUM_IDS)), weight.detach())
    assert emb.global_step == 4


def test_torch_s_own_adagrad_and_embedding_bag_agree_to_rounding() -> None:
    optimizer = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1.0)
    slots = {mode: ml.Slot(DIM, combiner=mode, initializer=ml.initializers.Zeros()) for mode in ("sum", "mean")}
    emb = ml.Embeddings(slots, optimizer)
    bags = {mode: torch.nn.EmbeddingBag(NUM_IDS, DIM, mode=mode, _weight=torch.zeros(NUM_IDS, DIM)) for mode in slots}
    parameters = [bag.weight for bag in bags.values()]
    dense = torch.optim.Adagrad(parameters, lr=0.1, initial_accumulator_value=1.0, eps=0)
    for step in range(5):
        lengths = torch.randint(4, (9,), generator=seeded(step))
        ids = torch.randint(NUM_IDS, (int(lengths.sum()),), generator=seeded(50 + step))
        ragged = ml.Ragged.from_lengths(ids, lengths)
        target = torch.randn(9, DIM, generator=seeded(100 + step))
        x = emb(dict.fromkeys(slots, ragged))
        for mode, bag in bags.items():
            pooled = bag(ids, ragged.row_splits[:-1])
            torch.testing.assert_close(x[mode], pooled)
            (x[mode] - target).square().sum().backward(retain_graph=True)
            (pooled - target).square().sum().backward()
        emb.step()
        dense.step()
        dense.zero_grad()
    for mode, bag in bags.items():
        torch.testing.assert_close(emb.lookup(mode, torch.arange(NUM_IDS)), bag.weight.detach())


def test_engines_agree_bit_for_bit() -> None:
    """The same training on `LocalStore` and on dictionaries that know nothing of the core."""
    results = []
    for engine in (ml.tables.LocalStore, ReferenceStore):
        slot = ml.Slot(3, combiner="mean", initializer=ml.initializers.Constant(0.5), compressor=ml.compressors.Fp32())
        emb = ml.Embeddings({"a": slot, "b": slot}, ml.row_optimizers.Adagrad(learning_rate=0.1), store=engine)
        for step in range(3):
            ids = torch.randint(6, (8, 3), generator=seeded(step))
            x = emb({"a": ids, "b": ids.flip(0)})
            (x["a"].square().sum() - x["b"].sum()).backward()
            emb.step(scale=0.5)
        results.append(torch.stack([emb.lookup(name, torch.arange(6)) for name in ("a", "b")]))
    assert torch.equal(*results)
