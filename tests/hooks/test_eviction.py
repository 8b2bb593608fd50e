"""Expired rows leave the tables while training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from hooks.sessions import FakeSession
from monolith.checkpoint import TrainState
from monolith.data import Batch
from monolith.hook import Hook
from monolith.hooks import EvictionHook
from monolith.testing import ExampleTask, FakeClock
from monolith.train import PipelineConfig, SavingConfig, TablesConfig, Trainer, TrainerConfig

DAY = 24 * 3600
STEPS = 12


class DayByDay(ExampleTask):
    """Each step is a day after the last one, with items of its own, which live for a day; users stay."""

    def input_fn(self, mode: Any) -> Any:
        clicks = super().input_fn(mode)
        make = clicks.make

        def make_day(number: int) -> Any:
            batch: dict[str, Any] = dict(make(number))
            batch["req_time"] = batch["req_time"] + DAY * number
            batch["item"] = batch["item"] + 10_000 * number
            return Batch(batch, num_rows=clicks.batch_size)

        clicks.make = make_day  # type: ignore[method-assign]
        return clicks


class Rows(Hook):
    """Rows after each step, behind all other hooks."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def after_run(self, context: Any) -> None:
        self.seen.append(context.session.state.embeddings["emb"].num_rows)


def items_of(number: int) -> int:
    return len(set(DayByDay().input_fn("train").make(number)["item"].tolist()))


def users_until(number: int) -> int:
    clicks = DayByDay().input_fn("train")
    return len({user for each in range(number + 1) for user in clicks.make(each)["user"].tolist()})


class TestByStep:
    @pytest.mark.parametrize("pipeline", [PipelineConfig(), PipelineConfig(prefetch=2, postpush=True)])
    def test_only_what_has_expired_goes_and_only_at_its_steps(self, pipeline: PipelineConfig) -> None:
        rows = Rows()
        config = TrainerConfig(tables=TablesConfig(evict_every_steps=3), pipeline=pipeline, deterministic=True)
        Trainer(DayByDay, config, hooks=[rows]).train(steps=6)
        assert rows.seen[2] == users_until(2) + items_of(2), "of the items only those of the last day are left"
        assert rows.seen[5] == users_until(5) + items_of(5)
        if not pipeline.postpush:
            assert rows.seen[1] == users_until(1) + items_of(0) + items_of(1), "nothing goes between"
            assert rows.seen[3] == users_until(3) + items_of(2) + items_of(3)

    def test_without_the_option_everything_stays(self) -> None:
        rows = Rows()
        Trainer(DayByDay, hooks=[rows]).train(steps=3)
        assert rows.seen[2] == users_until(2) + sum(map(items_of, range(3)))

    @pytest.mark.parametrize("pipeline", [PipelineConfig(), PipelineConfig(prefetch=2, postpush=True)])
    @pytest.mark.parametrize("stop_at", [4, 6])
    def test_a_run_in_pieces_equals_one_in_one_go(self, tmp_path: Path, pipeline: PipelineConfig, stop_at: int) -> None:
        def train(folder: str, *pieces: int) -> Any:
            config = TrainerConfig(
                model_dir=str(tmp_path / folder),
                saving=SavingConfig(every_steps=2),
                tables=TablesConfig(evict_every_steps=3),
                pipeline=pipeline,
                deterministic=True,
            )
            for steps in pieces:
                state = Trainer(DayByDay, config).train(steps=steps)
            return state

        whole, pieces = train("a", STEPS), train("b", stop_at, STEPS - stop_at)
        one, other = whole.embeddings["emb"], pieces.embeddings["emb"]
        assert one.num_rows == other.num_rows
        ids = DayByDay().input_fn("train").make(STEPS - 1)
        for name in ("user", "item"):
            assert torch.equal(one.lookup(name, ids[name]), other.lookup(name, ids[name]))
        assert torch.equal(whole.model["top"].weight, pieces.model["top"].weight)

    def test_a_checkpoint_of_the_same_step_holds_what_is_left(self, tmp_path: Path) -> None:
        config = TrainerConfig(
            model_dir=str(tmp_path), saving=SavingConfig(every_steps=3), tables=TablesConfig(evict_every_steps=3)
        )
        Trainer(DayByDay, config).train(steps=3)
        state = Trainer(DayByDay, TrainerConfig(model_dir=str(tmp_path))).train(steps=0)
        assert state.embeddings["emb"].num_rows == users_until(2) + items_of(2)


class TestBySeconds:
    def test_it_counts_from_the_start_of_the_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tables = ml.Embeddings({"user": ml.Slot(dim=4)})
        clock, session = FakeClock(), FakeSession(state=TrainState(model=tables))
        evicted: list[int] = []
        settled: list[int] = []

        def evict() -> int:
            evicted.append(session.global_step)
            settled.append(session.num_settled)
            return 5

        monkeypatch.setattr(tables, "evict", evict)
        hook = EvictionHook(every_secs=60, clock=clock)
        hook.after_create_session(session)
        for _ in range(7):
            clock.advance(20)
            session.global_step += 1
            hook.after_run(session.context())
        assert evicted == [3, 6]
        assert settled == [1, 2], "what is under way is applied first, each time"


class TestRefused:
    @pytest.mark.parametrize(
        "intervals", [{}, {"every_steps": 1, "every_secs": 1.0}, {"every_steps": 0}, {"every_secs": -1.0}]
    )
    def test_intervals_that_say_nothing(self, intervals: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="every_"):
            EvictionHook(**intervals)

    @pytest.mark.parametrize("given", [{"evict_every_steps": 0}, {"evict_every_seconds": 0.0}])
    def test_intervals_of_a_config(self, given: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="evict_every_"):
            TablesConfig(**given)
        with pytest.raises(ValueError, match="give evict_every_steps or evict_every_seconds, got both"):
            TablesConfig(evict_every_steps=1, evict_every_seconds=1.0)

    def test_seconds_in_a_run_that_must_repeat(self) -> None:
        with pytest.raises(ValueError, match=r"fixed steps, got tables\.evict_every_seconds=3600"):
            TrainerConfig(deterministic=True, tables=TablesConfig(evict_every_seconds=3600))
