"""The peers do the same work as each other; that ours does too is checked in every run of the `training` row."""

from __future__ import annotations

import pytest
import torch

from monolith.cli._bench import peers, workload
from monolith.cli._bench.setting import Setting

SETTING = Setting(examples=32, features=26, num_batches=3)
NUM_ROWS, DIM = 500, 16


@pytest.fixture
def weights() -> torch.Tensor:
    return torch.empty(NUM_ROWS, DIM).uniform_(-0.05, 0.05, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def gradient() -> torch.Tensor:
    return workload.output_gradient(SETTING.ids_per_batch, DIM)


@pytest.fixture
def batches() -> list[workload.WorkloadBatch]:
    return workload.zipf_batches(SETTING, NUM_ROWS)


def adagrad(weights: torch.Tensor, gradient: torch.Tensor, batches: list[workload.WorkloadBatch]) -> torch.Tensor:
    """Adagrad with repeated rows summed first, row by row in float64."""
    rows = weights.double().clone()
    accumulator = torch.full_like(rows, 0.1)
    for batch in batches:
        total = torch.zeros_like(rows)
        for row, each in zip(batch.rows.tolist(), gradient.double(), strict=True):
            total[row] += each
        accumulator += total**2
        rows -= 0.01 * total / (accumulator.sqrt() + 1e-10)
    return rows


def test_torch_trains_by_the_formula(
    weights: torch.Tensor, gradient: torch.Tensor, batches: list[workload.WorkloadBatch]
) -> None:
    bag = peers.TorchBag(weights, gradient)
    for batch in batches:
        bag.train(batch)
    expected = adagrad(weights, gradient, batches)[batches[0].rows]
    torch.testing.assert_close(bag.lookup(batches[0]).double(), expected, atol=1e-6, rtol=0)


def test_a_peer_keeps_the_weights_it_was_given_to_itself(weights: torch.Tensor, gradient: torch.Tensor) -> None:
    before = weights.clone()
    bag = peers.TorchBag(weights, gradient)
    bag.train(workload.zipf_batches(SETTING, NUM_ROWS)[0])
    assert torch.equal(weights, before)


def test_the_dict_finds_the_rows_of_ids(
    weights: torch.Tensor, gradient: torch.Tensor, batches: list[workload.WorkloadBatch]
) -> None:
    bag, shared = peers.TorchBag(weights, gradient), peers.TorchBag(weights, gradient)
    mapped = peers.DictBag(shared, NUM_ROWS)
    for batch in batches:
        bag.train(batch)
        mapped.train(batch)
    assert torch.equal(shared.lookup(batches[0]), bag.lookup(batches[0]))


@pytest.mark.skipif(peers.find_fbgemm() is None, reason=f"FBGEMM is not installed: {peers.FBGEMM_INSTALL}")
def test_fbgemm_trains_as_torch_does(
    weights: torch.Tensor, gradient: torch.Tensor, batches: list[workload.WorkloadBatch]
) -> None:
    bag = peers.TorchBag(weights, gradient)
    fused = peers.FbgemmBag(weights, gradient, features=SETTING.features)
    for batch in batches:
        bag.train(batch)
        fused.train(batch)
    for batch in batches:
        torch.testing.assert_close(fused.flat(fused.lookup(batch)), bag.lookup(batch), atol=1e-6, rtol=0)
