"""Synchronous training on several ranks, against one process that does the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.checkpoint import TrainState
from monolith.nn import BatchContext
from programs import Programs
from train.sync_cases import (
    PIPELINES,
    Broken,
    BrokenWeight,
    Counting,
    DenseTask,
    Expiring,
    MeanRows,
    OneBatch,
    RowsTask,
    Thirteen,
    batch,
    digest_of,
    numbers_of,
    restored,
)
from train.sync_ranks import results_of, run_ranks

pytestmark = pytest.mark.slow

CASES = ["dense", "rows", "unequal", "one_batch", "mean", "staleness", "resume", "signal", "by_seconds", "nan"]
CASES += ["different", "places", "expiring"]


class Run:
    """All cases on so many ranks."""

    def __init__(self, programs: Programs, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        run_ranks(programs, "sync_cases", folder, CASES, size=size)

    def results(self, case: str) -> list[Any]:
        return results_of(self.folder, case, self.size)

    def state(self, task: type[DenseTask], case: str, *below: str) -> TrainState:
        return restored(task, self.folder.joinpath(case, *below))


@pytest.fixture(scope="module", params=[3])
def ranks(request: pytest.FixtureRequest, programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(programs, tmp_path_factory.mktemp("ranks"), request.param)


def accumulated(task_class: type[DenseTask], size: int, steps: int | None = None) -> TrainState:
    """One process that accumulates the micro-batches of the ranks, in their order."""
    torch.manual_seed(0)
    task = task_class()
    model = task.make_model()
    optimizer = task.optimizers(model)
    state = TrainState(model=model, optimizers={"dense": optimizer})
    shares = [numbers_of(rank, size, task.total) for rank in range(size)]
    for step in range(len(shares[0]) if steps is None else steps):
        numbers = [share[step] for share in shares if step < len(share)]
        optimizer.zero_grad()
        for number in numbers:
            features = batch(number, task.seconds_apart)
            with BatchContext(features, time=int(features["req_time"].max())):
                loss = task.model_fn(features, "train").loss
                assert loss is not None
                loss.backward()  # type: ignore[no-untyped-call]
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad /= len(numbers)
        optimizer.step()
        for module in state.embeddings.values():
            module.step(global_step=step)
    return state


class TestBitForBit:
    """Ranks give the weights and rows of one process, in deterministic mode."""

    def test_dense_weights(self, ranks: Run) -> None:
        steps = [[step, True] for step in range(1, 12 // ranks.size + 1)]
        assert ranks.results("dense") == [{"step": len(steps), "steps": steps}] * ranks.size
        assert digest_of(ranks.state(DenseTask, "dense")) == digest_of(accumulated(DenseTask, ranks.size))

    def test_weights_and_rows(self, ranks: Run) -> None:
        ranks.results("rows")
        assert digest_of(ranks.state(RowsTask, "rows")) == digest_of(accumulated(RowsTask, ranks.size))

    def test_rows_that_expire(self, ranks: Run) -> None:
        expected = accumulated(Expiring, ranks.size)
        expired = expected.embeddings["emb"].store.stats().evicted
        assert expired > 0
        assert ranks.results("expiring") == [{"step": 36 // ranks.size, "expired": expired}] * ranks.size
        found = ranks.state(Expiring, "expiring")
        assert digest_of(found) == digest_of(expected)
        newest, seen = 0, dict[int, int]()
        for number in range(36):
            features = batch(number, Expiring.seconds_apart)
            newest = int(features["req_time"].max())
            seen |= dict.fromkeys(features["ids"].flatten().tolist(), newest)
        rows = set(found.embeddings["emb"].vectors("ids").ids.tolist())
        assert {key for key, time in seen.items() if newest - time < 86_400} <= rows
        assert rows <= {key for key, time in seen.items() if newest - time < 86_400 + 3600}

    def test_ranks_without_a_batch_follow_the_others(self, ranks: Run) -> None:
        steps = -(-13 // ranks.size)
        for rank, found in enumerate(ranks.results("unequal")):
            assert found["step"] == steps
            assert found["steps"] == [[step, step < steps or rank == 0] for step in range(1, steps + 1)]
        assert digest_of(ranks.state(Thirteen, "unequal")) == digest_of(accumulated(Thirteen, ranks.size))

    def test_ranks_that_never_have_a_batch(self, ranks: Run) -> None:
        found = ranks.results("one_batch")
        assert [each["steps"] for each in found] == [[[1, rank == 0]] for rank in range(ranks.size)]
        assert digest_of(ranks.state(OneBatch, "one_batch")) == digest_of(accumulated(OneBatch, ranks.size))


def test_the_mean_over_ranks_is_one_full_batch(ranks: Run) -> None:
    ranks.results("mean")
    found = ranks.state(MeanRows, "mean")
    torch.manual_seed(0)
    task = MeanRows()
    model = task.make_model()
    optimizer = task.optimizers(model)
    for step in range(12 // ranks.size):
        parts = [batch(step * ranks.size + rank) for rank in range(ranks.size)]
        features = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name != "number"}
        optimizer.zero_grad()
        with BatchContext(features, time=int(features["req_time"].max())):
            loss = task.model_fn({**features, "number": 0}, "train").loss
            assert loss is not None
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        task.emb.step(global_step=step)
    assert found.model is not None
    for (name, have), (_, want) in zip(found.model.named_parameters(), model.named_parameters(), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6, msg=name)
    for slot in task.emb.slots:
        rows = [each.lookup(slot, torch.arange(50)) for each in (found.embeddings["emb"], task.emb)]
        torch.testing.assert_close(*rows, rtol=1e-5, atol=1e-6)


class TestPipelines:
    """Rows lack exactly as many updates as each option says; a save is a fence, and all is applied in the end."""

    @pytest.mark.parametrize("settled_at", [0, 4])
    @pytest.mark.parametrize("name", PIPELINES)
    def test_staleness(self, ranks: Run, name: str, settled_at: int) -> None:
        lag, steps = PIPELINES[name][1], Counting.steps
        batches = [steps - rank for rank in range(ranks.size)]
        behind = [sum(min(step, count) for count in batches) for step in range(steps + 1)]
        want = [behind[max(0, step - lag, settled_at if step >= settled_at else 0)] for step in range(steps)]
        for rank, found in enumerate(ranks.results("staleness")):
            assert found[f"{name}/{settled_at}"] == [want[: batches[rank]], float(sum(batches)), steps, steps]


def test_a_run_in_pieces_with_all_pipelines_resumes_where_it_stopped(ranks: Run) -> None:
    steps = -(-13 // ranks.size)
    assert ranks.results("resume") == [[3, min(5, steps), steps]] * ranks.size
    applied = ranks.state(Thirteen, "resume").applied
    counts = {rank: len(numbers_of(rank, ranks.size, 13)) for rank in range(ranks.size)}
    assert {worker: stamp.seq + 1 for worker, stamp in applied.items()} == counts
    assert {worker: int(stamp.position) for worker, stamp in applied.items()} == counts


def test_a_signal_for_one_rank_stops_all_after_the_next_step(ranks: Run) -> None:
    assert ranks.results("signal") == [3] * ranks.size
    assert ranks.state(RowsTask, "signal").global_step == 3


def test_rank_0_decides_about_saves_by_seconds(ranks: Run) -> None:
    ranks.results("by_seconds")
    folder = ranks.folder / "by_seconds" / "model"
    assert sorted(path.name for path in folder.glob("*.manifest")) == [
        f"model.ckpt-{step}.manifest" for step in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("place", "task", "reason"),
    [(0, Broken, "its loss is nan"), (1, BrokenWeight, "the gradient of weight 'tower.0.weight' is not finite")],
)
def test_a_nan_on_one_rank_is_refused_by_all(ranks: Run, place: int, task: type[Broken], reason: str) -> None:
    want = f"step 3: rank {ranks.size - 1} refuses it: {reason}. No rank has changed anything"
    assert [found[place] for found in ranks.results("nan")] == [want] * ranks.size
    saved = ranks.state(task, "nan", task.__name__)
    assert saved.global_step == 2
    assert digest_of(saved) == digest_of(accumulated(RowsTask, ranks.size, steps=2)), "the last whole step was saved"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("model", ["weight tower.0.weight: torch.float32 [3, 4]", "weight tower.0.weight: torch.float32 [4, 4]"]),
        ("tables", ["rank 1 has other tables than rank 0", "seed: 0 here, 1 given"]),
        ("optimizer", ["'lr': 0.05", "'lr': 0.1"]),
        ("config", ["'config.pipeline.prefetch = 0'", "'config.pipeline.prefetch = 1'", "same options"]),
    ],
)
def test_differing_ranks_raise_the_same_error_on_all_ranks(ranks: Run, what: str, words: list[str]) -> None:
    told = [found[what].replace("\\'", "'") for found in ranks.results("different")]
    assert len(set(told)) == 1
    assert all(word in told[0] for word in words), told[0]


def test_numbers_that_are_not_the_launchers_are_refused(ranks: Run) -> None:
    for rank, (index, number, servers, switch) in enumerate(ranks.results("places")):
        assert f"index must be the rank that the launcher gave, {rank}, got 5" in index
        assert f"num_workers must be the number of ranks that the launcher gave, {ranks.size}, got 7" in number
        assert "num_ps must be 0, as ranks keep the rows, got 2" in servers
        assert "enable_sync_training must be True, got False" in switch
