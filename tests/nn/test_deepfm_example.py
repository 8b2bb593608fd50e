"""The claim of examples/deepfm.py, for each of its five seeds: rows of their own beat hashed ids in equal memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def example(project_root: Path) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("deepfm", project_root / "examples" / "deepfm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine small operations wait for each other's threads, not for results
    yield module
    torch.set_num_threads(before)


@pytest.mark.timeout(900)  # ends hangs; a busy machine may take ten times as long as an idle one
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_collisions_cost_at_least_a_hundredth_of_auc(example: ModuleType, seed: int) -> None:
    own, hashed = example.compare(seed)
    assert own >= example.LEAST_AUC == 0.74
    assert own - hashed >= example.LEAST_LOSS == 0.01


def test_its_auc_is_the_share_of_ordered_pairs(example: ModuleType) -> None:
    draw = torch.Generator().manual_seed(3)
    scores, clicks = torch.randn(60, generator=draw), (torch.rand(60, generator=draw) < 0.4).float()
    pairs = scores[clicks == 1][:, None] > scores[clicks == 0][None, :]
    assert example.auc(scores, clicks) == pytest.approx(pairs.double().mean().item())


def test_hashed_ids_are_as_many_as_the_memory_allows(example: ModuleType) -> None:
    traffic = example.make_traffic(0)
    hashed = example.hashed(traffic, 1000)
    assert all(int(ids.min()) >= 0 and int(ids.max()) < 1000 for ids in hashed.ids.values())
    assert len(traffic.ids["user"].unique()) > 250_000, "half of the impressions are of visitors"
    assert int(traffic.ids["user"].max()) < 2**48
