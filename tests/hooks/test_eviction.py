"""Expired rows leave the tables while training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from hooks.day_by_day import DAY, DayByDay
from hooks.sessions import FakeSession
from monolith.checkpoint import TrainState
from monolith.hook import Hook
from monolith.hooks import EvictionHook
from monolith.testing import FakeClock
from monolith.train import PipelineConfig, ReportingConfig, SavingConfig, TablesConfig, Trainer, TrainerConfig

STEPS = 12


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

    def test_if_nothing_is_to_be_removed_everything_stays(self) -> None:
        rows = Rows()
        trainer = Trainer(DayByDay, TrainerConfig(tables=TablesConfig(evict_every_seconds=0)), hooks=[rows])
        trainer.train(steps=3)
        assert rows.seen[2] == users_until(2) + sum(map(items_of, range(3)))
        assert trainer.history.expired_rows == 0

    @pytest.mark.parametrize("pipeline", [PipelineConfig(), PipelineConfig(prefetch=2, postpush=True)])
    @pytest.mark.parametrize(("stop_at", "every_steps"), [(4, 3), (6, 3), (4, None)])
    def test_a_run_in_pieces_equals_one_in_one_go(
        self, tmp_path: Path, pipeline: PipelineConfig, stop_at: int, every_steps: int | None
    ) -> None:
        def train(folder: str, *pieces: int) -> Any:
            config = TrainerConfig(
                model_dir=str(tmp_path / folder),
                saving=SavingConfig(every_steps=2),
                tables=TablesConfig(evict_every_steps=every_steps),
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


class TestByEventTime:
    @pytest.mark.parametrize("num_ps", [0, 3])
    def test_steps_remove_what_has_expired_and_the_run_counts_it(self, num_ps: int) -> None:
        rows = Rows()
        config = TrainerConfig(tables=TablesConfig(num_ps=num_ps), reporting=ReportingConfig(summary_every_steps=1))
        trainer = Trainer(DayByDay, config, hooks=[rows])
        trainer.train(steps=STEPS)
        # Items live for a day, and batches are a day and up to some seconds apart: those of the last two may be there.
        for step in range(STEPS):
            least, most = users_until(step) + items_of(step), users_until(step) + sum(map(items_of, (step - 1, step)))
            assert least <= rows.seen[step] <= most or step == 0
        gone = users_until(STEPS - 1) + sum(map(items_of, range(STEPS))) - rows.seen[-1]
        assert trainer.history.expired_rows == gone > 0
        assert trainer.history["expired_rows"][-1] == gone

    def test_an_interval_is_that_of_event_time(self) -> None:
        rows = Rows()
        config = TrainerConfig(tables=TablesConfig(evict_every_seconds=365 * DAY))
        Trainer(DayByDay, config, hooks=[rows]).train(steps=STEPS)
        everything = users_until(STEPS - 1) + sum(map(items_of, range(STEPS)))
        assert 0.9 * everything < rows.seen[-1] <= everything, "of a year's turn twelve days have passed"


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
    def test_missing_conflicting_or_nonpositive_intervals_are_rejected(self, intervals: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="every_"):
            EvictionHook(**intervals)

    @pytest.mark.parametrize("given", [{"evict_every_steps": 0}, {"evict_every_seconds": -1.0}])
    def test_intervals_of_a_config(self, given: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="evict_every_"):
            TablesConfig(**given)
        with pytest.raises(ValueError, match="give evict_every_steps or evict_every_seconds, got both"):
            TablesConfig(evict_every_steps=1, evict_every_seconds=1.0)
