"""Partially synchronous training: rows on two servers, dense weights averaged by two ranks, each a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpoint.zygote import Zygote
from train.partial_cases import ALL, LAST, PIPELINES, Broken, Counting, Disjoint
from train.partial_jobs import PartialJob
from train.sync_cases import digest_of, restored
from train.sync_saving_cases import saved_steps
from train.test_sync_training import accumulated

pytestmark = pytest.mark.slow

STEPS = (LAST + 1) // 2
"""Of 13 batches on two ranks: in the last one rank 1 has none."""
LACKS = {"none": 0, "prefetch": 2, "postpush": 1, "both": 2}
"""Updates of its own rank that a batch lacks."""


def started(zygote: Zygote, folder: Path, case: str) -> PartialJob:
    """A job with its servers."""
    job = PartialJob(zygote, folder, case)
    for index in range(2):
        job.start_server(index)
    return job


@pytest.fixture(scope="module")
def equal(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartialJob]:
    """A job of two ranks that meet different ids, in pieces."""
    with started(zygote, tmp_path_factory.mktemp("jobs"), "equal") as job:
        job.found = job.run_ranks()
        yield job


class TestEqual:
    """Beside one process that accumulates the batches of the ranks."""

    def test_weights_and_rows_are_those_of_one_process_bit_for_bit(self, equal: PartialJob) -> None:
        assert [each["steps"] for each in equal.found] == [[3, 6, STEPS]] * 2
        assert digest_of(restored(Disjoint, equal.folder)) == digest_of(accumulated(Disjoint, 2))

    def test_a_rank_whose_input_has_ended_continues_with_the_others(self, equal: PartialJob) -> None:
        assert [each["watched"] for each in equal.found] == [[[STEPS, True]], [[STEPS, False]]]

    def test_a_nan_of_one_rank_is_refused_by_all_and_nothing_has_changed(self, equal: PartialJob) -> None:
        told = "step 3: rank 1 refuses it: its loss is nan. No rank has changed anything"
        assert [each["nan"] for each in equal.found] == [told] * 2
        assert digest_of(restored(Broken, equal.folder / "nan")) == digest_of(accumulated(Disjoint, 2, steps=2))

    def test_servers_stay_when_rank_0_is_sent_away_and_end_with_the_job(self, equal: PartialJob) -> None:
        assert [equal.wait_for("ps0"), equal.wait_for("ps1")] == [None, None]

    def test_saves_are_made_at_the_same_step_of_all_ranks(self, equal: PartialJob) -> None:
        assert saved_steps(equal.folder / "model") == [2, 3, 6, STEPS]

    def test_an_estimator_chooses_by_its_config_and_evaluates_the_last_checkpoint(self, equal: PartialJob) -> None:
        assert [each["evaluated"] for each in equal.found] == [["auc", "examples", "global_step", "loss"]] * 2


def test_every_batch_counts_once_whatever_dies(zygote: Zygote, tmp_path: Path) -> None:
    """Rank 1 dies behind a checkpoint, and the servers live on with newer rows; then a server dies."""
    with started(zygote, tmp_path, "counts") as job:
        (first,) = job.run_ranks(but=1)
        assert "UnavailableError" in first
        both = job.run_ranks()
        assert all("Error: " in str(each) for each in both), f"all ranks end with a server: {both}"
        assert any("all ranks wait for the servers" in job.log(name) for name in ("rank0", "rank1"))
        job.start_server(1)
        assert job.run_ranks() == [LAST] * 2
        state = restored(Counting, job.folder)
    (module,) = state.embeddings.values()
    rows = module.lookup("ids", torch.arange(ALL + 3)).flatten()
    assert rows[: 2 * LAST].tolist() == [1.0] * (2 * LAST), "each batch"
    assert rows[ALL:].tolist() == [2.0 * LAST, LAST, LAST], "all of them, and those of each rank"
    assert state.model is not None
    weight = dict(state.model.named_parameters())["bias.weight"]
    torch.manual_seed(0)
    begun = dict(Counting().make_model().named_parameters())["bias.weight"]
    assert float((weight - begun).detach()) == pytest.approx(LAST * 0.25 * 2), "steps by the mean of gradients 1 and 3"


def test_pipelines_lack_as_many_updates_as_stated(zygote: Zygote, tmp_path: Path) -> None:
    """Each run begins with nothing, on servers that have the rows of the one before it."""
    with started(zygote, tmp_path, "pipelines") as job:
        found = job.run_ranks()
    seen = {name: [max(0, step - lack) for step in range(LAST)] for name, lack in LACKS.items()}
    assert found == [{name: [seen[name], LAST] for name in PIPELINES}] * 2
