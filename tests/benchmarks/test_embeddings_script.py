"""benchmarks/embeddings.py measures what it says, on tables of a few rows."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def script(project_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "benchmarks_embeddings", project_root / "benchmarks" / "embeddings.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_requirement_is_measured_and_judged(script: ModuleType) -> None:
    args = argparse.Namespace(rows=2600, examples=8, batches=2, rounds=1, seconds=0.01)
    torchrec, torch_bags, added, hashes = script.measure(args)
    assert (torchrec.limit, torch_bags.limit, added.limit, hashes.limit) == (2.5, 4.0, 1.0, 1.15)
    assert hashes.figure is not None
    assert torch_bags.ratio is not None
    assert added.figure is not None
    assert (torchrec.ratio is None) == (importlib.util.find_spec("torchrec") is None)


def test_ours_and_torch_learn_the_same_rows(script: ModuleType) -> None:
    batches = script.make_batches(3, 16, 50)
    gradient = torch.randn(16, script.FEATURES * script.DIM, generator=torch.Generator().manual_seed(5))
    ours = script.Ours(50, gradient)
    bags = script.TorchBags(ours.weights(50), gradient)
    bare = script.Bare(50, batches, gradient)
    for batch in batches:
        for contestant in (ours, bags, bare):
            contestant.train(batch)
    torch.testing.assert_close(ours.lookup(batches[0]), bags.lookup(batches[0]), rtol=1e-5, atol=1e-6)
    assert bare._store.stats().rows == ours.emb.num_rows == 50 * script.FEATURES


def test_a_contestant_that_learns_something_else_stops_the_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.TorchBags, "train", lambda self, batch: None)
    args = argparse.Namespace(rows=2600, examples=8, batches=2, rounds=1, seconds=0.01)
    with pytest.raises(AssertionError, match=r"differ by .* after one step: they do not do the same work"):
        script.measure(args)
