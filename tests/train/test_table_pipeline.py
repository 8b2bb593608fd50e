"""What rows a batch is trained on, and when gradients reach them, for every depth of the pipeline."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.checkpoint import Saver
from monolith.data.dataset import Dataset, Reading
from monolith.errors import OutOfRangeError
from monolith.hook import Hook, StepContext
from monolith.testing import ExampleTask
from monolith.train import PipelineConfig, Session, Spec, Task


class Counting(Task):
    """One id whose row is the number of updates that it has got: -1 times the gradient of -1, added up."""

    def build(self) -> None:
        slot = ml.Slot(dim=1, initializer=ml.initializers.Zeros())
        self.emb = ml.Embeddings({"user": slot}, optimizer=ml.row_optimizers.Sgd(learning_rate=1.0))
        self.seen: list[int] = []

    def model_fn(self, features: Any, mode: Any) -> Spec:
        row = self.emb(features)["user"]
        self.seen.append(round(float(row.detach())))
        return Spec(-row.sum())


BATCH = {"user": torch.tensor([7]), "req_time": torch.tensor([1])}


def seen_by(pipeline: PipelineConfig, steps: int, hooks: tuple[Hook, ...] = ()) -> tuple[list[int], Counting]:
    """How many updates the rows of each batch had."""
    task = Counting()
    with Session(task, pipeline=pipeline, hooks=hooks) as session:
        run_all(session, [BATCH] * steps)
    return task.seen, task


def run_all(session: Session, source: Any) -> None:
    with session.feed(source) as feed, contextlib.suppress(OutOfRangeError):
        while True:
            session.run_next(feed)


@pytest.mark.parametrize("capacity", [0, 1, 2, 5])
@pytest.mark.parametrize("postpush", [False, True])
class TestStaleness:
    def test_rows_lack_as_many_updates_as_stated(self, capacity: int, postpush: bool) -> None:
        pipeline = PipelineConfig(prefetch=capacity, postpush=postpush, wait_for_batches=True)
        seen, task = seen_by(pipeline, 12)
        lag = capacity + postpush
        assert seen == [max(0, step - lag) for step in range(12)]
        assert float(task.emb.lookup("user", torch.tensor([7]))) == 12.0, "at the end every gradient is applied"
        assert task.emb.store.stats().open_plans == 0

    def test_without_waiting_for_batches_they_lack_no_more(self, capacity: int, postpush: bool) -> None:
        seen, _ = seen_by(PipelineConfig(prefetch=capacity, postpush=postpush), 12)
        lag = capacity + postpush
        assert all(step - lag <= count <= step for step, count in enumerate(seen))

    def test_a_cut_is_a_fence(self, capacity: int, postpush: bool, tmp_path: Path) -> None:
        saver = Saver(tmp_path)

        class Saving(Hook):
            def after_run(self, context: StepContext) -> None:
                session = context.session
                assert isinstance(session, Session)
                if context.global_step == 6:
                    saver.save(session.state, background=False)
                    session.on_close(saver.close)

        pipeline = PipelineConfig(prefetch=capacity, postpush=postpush, wait_for_batches=True)
        seen, _ = seen_by(pipeline, 12, (Saving(),))
        lag = capacity + postpush
        assert seen[:6] == [max(0, step - lag) for step in range(6)]
        assert seen[6:] == [max(6, step - lag) for step in range(6, 12)], "the rows of the next batches are read again"
        task = Counting()
        with Session(task, restore=Saver(tmp_path).restore, pipeline=pipeline) as session:
            assert session.global_step == 6
            assert float(task.emb.lookup("user", torch.tensor([7]))) == 6.0
            with session.feed([BATCH] * 6) as feed:
                for _ in range(6):
                    session.run_next(feed)
        assert task.seen == seen[6:], "a run that goes on from the cut sees the same rows"


class Trickle(Dataset[Any]):
    """Batches of which the last never comes until the test says so."""

    def __init__(self, asked: list[int], available: int) -> None:
        self.asked, self.available = asked, available

    def read(self, position: bytes | None = None) -> Reading[Any]:
        dataset = self

        class Trickling(Reading[Any]):
            number = 0

            def __next__(self) -> Any:
                self.number += 1
                if self.number > dataset.available:
                    raise StopIteration
                dataset.asked.append(self.number)
                return BATCH

            @property
            def position(self) -> bytes:
                return str(self.number).encode()

            def close(self) -> None:
                dataset.asked.append(-1)

        return Trickling()


class TestFeed:
    def test_the_position_is_that_of_the_last_trained_batch_not_of_the_reader(self) -> None:
        asked: list[int] = []
        pipeline = PipelineConfig(prefetch=3, postpush=True, wait_for_batches=True)
        with Session(Counting(), pipeline=pipeline) as session, session.feed(Trickle(asked, 100)) as feed:
            for _ in range(5):
                session.run_next(feed)
            assert session.state.position() == b"5"
        assert max(asked) >= 8
        assert asked[-1] == -1, "the reading was closed"

    def test_an_error_of_the_input_comes_after_the_batches_before_it(self) -> None:
        def failing() -> Any:
            yield BATCH
            yield BATCH
            raise ValueError("torn file")

        for pipeline in (PipelineConfig(), PipelineConfig(prefetch=4, wait_for_batches=True)):
            task = Counting()
            with Session(task, pipeline=pipeline) as session, session.feed(failing()) as feed:
                session.run_next(feed)
                session.run_next(feed)
                with pytest.raises(ValueError, match="torn file"):
                    session.run_next(feed)
            assert len(task.seen) == 2

    def test_a_batch_that_cannot_be_planned_fails_in_its_turn(self) -> None:
        bad = {"user": torch.tensor([0.5])}
        task = Counting()
        pipeline = PipelineConfig(prefetch=2, postpush=True)
        with Session(task, pipeline=pipeline) as session, session.feed([BATCH, bad]) as feed:
            session.run_next(feed)
            with pytest.raises(TypeError, match="ids must be int64"):
                session.run_next(feed)
        assert float(task.emb.lookup("user", torch.tensor([7]))) == 1.0

    def test_leaving_early_discards_what_was_read_ahead(self) -> None:
        task = ExampleTask()
        pipeline = PipelineConfig(prefetch=4, postpush=True, wait_for_batches=True)
        with Session(task, pipeline=pipeline) as session, session.feed(task.input_fn("train")) as feed:
            session.run_next(feed)
        assert task.emb.store.stats().open_plans == 0

    def test_an_error_leaves_nothing_open_either(self) -> None:
        class Failing(ExampleTask):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                if ml.train.get_current_session().global_step == 2:
                    raise ValueError("model")
                return super().model_fn(features, mode)

        task = Failing()
        pipeline = PipelineConfig(prefetch=2, postpush=True, wait_for_batches=True)
        with pytest.raises(ValueError, match="model"), Session(task, pipeline=pipeline) as session:
            run_all(session, task.input_fn("train"))
        del session
        assert task.emb.store.stats().open_plans <= 1, "only the pass of the last step, which autograd still holds"

    def test_a_model_that_looks_up_other_ids_than_the_features_is_trained(self) -> None:
        class Renaming(Counting):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                return super().model_fn({"user": features["uid"]}, mode)

        task = Renaming()
        batch = {"uid": torch.tensor([7])}
        with (
            Session(task, pipeline=PipelineConfig(prefetch=1, postpush=True, wait_for_batches=True)) as session,
            session.feed([batch] * 5) as feed,
        ):
            for _ in range(5):
                session.run_next(feed)
        assert float(task.emb.lookup("user", torch.tensor([7]))) == 5.0

    def test_a_gradient_that_cannot_be_applied_is_raised_by_the_next_step(self) -> None:
        class Infinite(Counting):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                factor = float("inf") if ml.train.get_current_session().global_step == 1 else 1.0
                return Spec(self.emb(features)["user"].sum() * factor)

        session = Session(Infinite(), pipeline=PipelineConfig(postpush=True))
        with pytest.raises(ValueError, match="not finite"), session:
            run_all(session, [BATCH] * 9)
        assert session.global_step == 2
        assert not session.is_whole

    def test_postponed_pushes_work_in_a_loop_of_ones_own(self) -> None:
        task = Counting()
        with Session(task, pipeline=PipelineConfig(postpush=True)) as session:
            for _ in range(6):
                session.run(BATCH)
        assert task.seen[-1] in {4, 5}
        assert float(task.emb.lookup("user", torch.tensor([7]))) == 6.0


def test_a_negative_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="prefetch must be >= 0"):
        PipelineConfig(prefetch=-1)
