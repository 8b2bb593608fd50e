"""`num_ps` in a run of one process: it starts no servers, and rows and checkpoints do not depend on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.checkpoint.state_dicts import model_state
from monolith.tables import BlockKind, LocalStore
from monolith.tables.history import ALL_BUCKETS
from monolith.testing import ExampleTask, ReferenceStore
from monolith.train import Estimator, RunConfig, RunnerConfig, Trainer, current_context, local_train, trainer_config_of
from monolith.train.roles.local_runner import make_trainer


def bits(trainer: Trainer) -> tuple[Any, ...]:
    """Rows with optimizer state and times, stamps, and the dense part."""
    assert trainer.state is not None
    store = trainer.state.embeddings["emb"].store
    cut = store.cut()
    rows = {
        (block.table, key): (time, payload.tobytes())
        for block in cut.blocks(ALL_BUCKETS, state=True)
        if block.kind is BlockKind.FULL
        for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True)
    }
    cut.release()
    assert trainer.state.model is not None
    weights = {n: v.tolist() for n, v in model_state(trainer.state.model).items() if isinstance(v, torch.Tensor)}
    stamps = [clock.stamps for clock in cut.applied]
    assert all(each == stamps[0] for each in stamps)
    return rows, stamps[0], weights, trainer.state.global_step, dict(trainer.state.applied)


def store_of(trainer: Trainer) -> Any:
    assert trainer.state is not None
    return trainer.state.embeddings["emb"].store


def trained(num_ps: int, *, steps: int | None = None, **options: Any) -> Trainer:
    trainer = make_trainer(RunnerConfig(num_ps=num_ps, **options), ExampleTask.params(), deterministic=True)
    trainer.train(steps=steps)
    return trainer


class TestNumPs:
    @pytest.mark.parametrize("postpush", [False, True])
    def test_rows_are_the_same_with_any_number(self, *, postpush: bool) -> None:
        options = {"embedding_prefetch_capacity": int(postpush), "enable_embedding_postpush": postpush}
        runs = {num_ps: trained(num_ps, **options) for num_ps in (0, 1, 2, 3)}
        assert {type(store_of(run)) for run in runs.values()} == {LocalStore}
        whole = bits(runs[0])
        assert len(whole[0]) > 100
        assert all(bits(run) == whole for run in runs.values())

    def test_a_run_resumes_with_another_number_of_servers(self, tmp_path: Path) -> None:
        for num_ps in (3, 0, 5, 2):
            options = {"model_dir": str(tmp_path), "save_checkpoints_steps": 3}
            resumed = trained(num_ps, steps=5, **options)
        assert bits(resumed) == bits(trained(0))

    def test_local_train_and_estimator_accept_it(self, tmp_path: Path) -> None:
        trainer = local_train(ExampleTask.params(), num_ps=2, model_dir=str(tmp_path), steps=3)
        assert type(store_of(trainer)) is LocalStore
        assert trainer.evaluate(steps=1)["global_step"] == 3
        with Estimator(ExampleTask, RunConfig(num_ps=3, is_local=True)) as estimator:
            estimator.train(steps=1)
            assert type(store_of(estimator.trainer)) is LocalStore

    def test_rows_expire_alike(self, tmp_path: Path) -> None:
        class Days(ExampleTask):
            def input_fn(self, mode: Any) -> Any:
                days: list[dict[str, Any]] = [{**ExampleTask.input_fn(self, mode).make(n)} for n in range(2)]
                days[1]["req_time"] = days[1]["req_time"] + 3 * 24 * 3600
                days[1] |= {name: days[1][name][:1] for name in ("user", "item", "label", "req_time")}
                return days

        rows = []
        for num_ps in (0, 3):
            options = RunnerConfig(
                model_dir=str(tmp_path / str(num_ps)),
                save_checkpoints_steps=2,
                feature_eviction_on_save=True,
                num_ps=num_ps,
            )
            trainer = make_trainer(options, Days.params(), deterministic=True)
            trainer.train()
            rows.append(bits(trainer)[0])
        assert rows[0] == rows[1]
        assert len(rows[1]) == 32 + 1 + 1  # the users of both days, and the item of the second

    def test_a_task_sees_it_and_one_that_names_its_store_keeps_that(self) -> None:
        seen: list[int] = []

        class Own(ExampleTask):
            def build(self) -> None:
                super().build()
                seen.append(current_context().num_ps)
                self.emb = ml.Embeddings({"user": ml.Slot(dim=4), "item": ml.Slot(dim=4)}, store=ReferenceStore)

        trainer = make_trainer(RunnerConfig(num_ps=4), Own.params())
        trainer.train(steps=1)
        assert seen == [4]
        assert isinstance(store_of(trainer), ReferenceStore)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"num_ps": -1}, "num_ps must be >= 0, got -1"),
            ({"num_ps": 1025}, "num_ps must be at most 1024, got 1025"),
        ],
    )
    def test_numbers_that_cannot_be(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            trainer_config_of(RunnerConfig(**options))
