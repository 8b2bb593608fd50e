"""The row `embeddings` measures what it says, on tables of a few rows."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from benchmarks.suites.tables import embeddings
from monolith.cli._bench.setting import Setting

TINY = Setting(small_rows=2600, examples=8, num_batches=2, rounds=1, seconds=0.01)


@pytest.mark.slow
def test_every_requirement_is_measured_and_judged() -> None:
    torchrec, torch_bags, module, hashes, _ = embeddings.measure(TINY)
    assert (torchrec.limit, torch_bags.limit, module.limit, hashes.limit) == (4.0, 4.0, 1.1, 1.05)
    assert None not in {torch_bags.ratio, module.ratio, hashes.ratio}
    assert (torchrec.ratio is None) == (importlib.util.find_spec("torchrec") is None)


def test_ours_and_torch_learn_the_same_rows() -> None:
    batches = embeddings.make_batches(3, 16, 50)
    gradient = torch.randn(16, embeddings.FEATURES * embeddings.DIM, generator=torch.Generator().manual_seed(5))
    ours = embeddings.Ours(50, gradient)
    bags = embeddings.TorchBags(ours.weights(50), gradient)
    bare = embeddings.Bare(50, batches, gradient)
    for batch in batches:
        ours.train(batch)
        bags.train(batch)
        bare.train(batch)
    torch.testing.assert_close(ours.lookup(batches[0]), bags.lookup(batches[0]), rtol=1e-5, atol=1e-6)
    assert bare._store.stats().rows == ours.emb.num_rows == 50 * embeddings.FEATURES


def test_a_contestant_that_learns_something_else_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings.TorchBags, "train", lambda self, batch: None)
    with pytest.raises(AssertionError, match=r"differ by .* after one step: they do not do the same work"):
        embeddings.measure(TINY)
