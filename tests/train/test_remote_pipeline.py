"""Tables in other processes beside the model: reads and pushes on their way together, and nobody waits for nothing."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.checkpoint import Saver
from monolith.errors import InvalidArgumentError, OpError, OutOfRangeError, UnavailableError
from monolith.hook import Hook, StepContext
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.tables import LocalStore
from monolith.tables.history import ALL_BUCKETS
from monolith.testing import ExampleTask
from monolith.train import PipelineConfig, Session, Spec, Task
from monolith.train._table_pipeline import TablePipeline
from nn.late_store import LateStore, Wire

BATCH = {"user": torch.tensor([7]), "req_time": torch.tensor([1])}
NUM_STEPS = 8


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

    @property
    def count(self) -> int:
        """Updates in the row, with all that were sent."""
        assert isinstance(self.emb.store, LateStore)
        self.emb.store.wire.answer_all()
        return round(float(self.emb.lookup("user", torch.tensor([7]))))


@contextlib.contextmanager
def opened(task: Task, pipeline: PipelineConfig, wire: Wire, **options: Any) -> Any:
    with (
        use_table_defaults(TableDefaults(store=lambda configs: LateStore(configs, wire))),
        Session(task, pipeline=pipeline, **options) as session,
    ):
        yield session


def ahead(prefetch: int, *, postpush: bool = True) -> PipelineConfig:
    return PipelineConfig(prefetch=prefetch, postpush=postpush, wait_for_batches=True)


def run_all(session: Session, source: Any) -> None:
    with session.feed(source) as feed, contextlib.suppress(OutOfRangeError):
        while True:
            session.run_next(feed)


def answering(how: str) -> Wire:
    wire = Wire()
    if how == "at once":
        wire.answer_at_once()
    elif how == "at random":
        wire.answer_at_random(5)
    return wire


def state_of(session: Session, task: ExampleTask) -> tuple[list[bytes], list[torch.Tensor]]:
    """Every bit of the rows and of the dense weights."""
    session.settle()
    with task.emb.cut() as cut:
        rows = [block.data for block in cut.blocks(ALL_BUCKETS, state=True)]
    return rows, [weight.detach().clone() for weight in task.top.parameters()]


@pytest.mark.parametrize("how", ["when asked", "at once", "at random"])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("postpush", [False, True])
def test_results_are_those_of_rows_in_this_process(prefetch: int, postpush: bool, how: str) -> None:
    pipeline = ahead(prefetch, postpush=postpush)
    here = ExampleTask()
    with Session(here, pipeline=pipeline, deterministic=True) as session:
        run_all(session, here.input_fn("train"))
        expected_rows, expected_weights = state_of(session, here)
    there = ExampleTask()
    with opened(there, pipeline, answering(how), deterministic=True) as session:
        run_all(session, there.input_fn("train"))
        rows, weights = state_of(session, there)
        assert there.emb.store.stats().open_plans == 0
    assert rows == expected_rows
    assert all(map(torch.equal, weights, expected_weights))


class TestOnTheWire:
    def test_reads_and_pushes_of_neighbouring_steps_are_in_flight_together(self) -> None:
        wire = Wire()
        with opened(Counting(), ahead(2), wire) as session:
            run_all(session, [BATCH] * NUM_STEPS)
        assert ["read 2", "read 3", "push 0", "read 4", "push 1"] in wire.together

    @pytest.mark.parametrize(
        ("pipeline", "expected"),
        [
            (ahead(0, postpush=False), "read 0, push 0, read 1, push 1, read 2, push 2"),
            (ahead(1, postpush=False), "read 0, read 1, push 0, read 2, push 1, push 2"),
            (ahead(0), "read 0, read 1, push 0, read 2, push 1, push 2"),
            (ahead(1), "read 0, read 1, read 2, push 0, push 1, push 2"),
        ],
    )
    def test_a_step_sends_its_read_ahead_before_the_push_of_the_step_before(
        self, pipeline: PipelineConfig, expected: str
    ) -> None:
        wire = Wire()
        with opened(Counting(), pipeline, wire) as session:
            run_all(session, [BATCH] * 3)
        assert ", ".join(wire.sent) == expected
        assert wire.previous == [-1, 0, 1], "each push names the one before it, which is on its way"

    def test_no_thread_waits_and_the_one_that_trains_waits_for_rows_alone(self) -> None:
        wire = Wire()
        names: set[str] = set()

        class Looking(Counting):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                names.update(each.name for each in threading.enumerate())
                return super().model_fn(features, mode)

        with opened(Looking(), ahead(1), wire) as session:
            run_all(session, [BATCH] * NUM_STEPS)
            assert wire.waited_for == [f"read {number}" for number in range(NUM_STEPS)]
        assert wire.waited_for[NUM_STEPS:] == [f"push {NUM_STEPS - 1 - left}" for left in (2, 1, 0)], "the fence does"
        assert wire.threads == {threading.current_thread().name}
        assert not [name for name in names if name.startswith("session/tables")]

    def test_rows_of_this_process_keep_their_thread_alongside_remote_rows(self) -> None:
        wire = Wire()
        names: set[str] = set()

        class Both(Counting):
            def build(self) -> None:
                super().build()
                slot = {"item": ml.Slot(dim=1)}
                self.here = ml.Embeddings(slot, optimizer=ml.row_optimizers.Sgd(), store=LocalStore)

            def model_fn(self, features: Any, mode: Any) -> Spec:
                names.update(each.name for each in threading.enumerate())
                loss = super().model_fn(features, mode).loss
                assert loss is not None
                return Spec(loss + self.here(features)["item"].sum())

        task = Both()
        with opened(task, ahead(1), wire) as session:
            run_all(session, [{**BATCH, "item": torch.tensor([3])}] * NUM_STEPS)
        assert [name for name in names if name.startswith("session/tables")]
        assert wire.threads == {threading.current_thread().name}
        assert task.count == NUM_STEPS
        assert task.here.store.stats().applied == {0: NUM_STEPS - 1}
        assert task.here.store.stats().open_plans == 0

    def test_without_postponed_pushes_an_update_is_in_the_rows_when_its_step_returns(self) -> None:
        wire = Wire()
        with opened(Counting(), ahead(2, postpush=False), wire) as session, session.feed([BATCH] * 4) as feed:
            for number in range(4):
                session.run_next(feed)
                assert not [each.name for each in wire.unanswered if each.name.startswith("push")]
                assert wire.sent.count(f"push {number}") == 1

    @pytest.mark.parametrize("prefetch", [0, 2])
    def test_no_more_pushes_are_in_flight_than_a_batch_may_lag(self, prefetch: int) -> None:
        """Models that read rows wait for the pushes before them; this is for others."""
        emb = ml.Embeddings({"user": ml.Slot(dim=1)}, store=LateStore)
        assert isinstance(emb.store, LateStore)
        batches = [emb.plan(BATCH) for _ in range(NUM_STEPS)]
        for batch in batches:
            emb.read_ahead(batch)
        emb.store.wire.answer_all()
        pipeline = TablePipeline(ahead(prefetch))
        for batch in batches:
            pipeline.begin_step()
            emb(batch)["user"].sum().backward()
            pipeline.wait_for_push()
            step = emb.take_step()
            assert step is not None
            pipeline.push([step])
            waiting = len(emb.store.wire.unanswered)
            assert waiting <= prefetch + 1
        assert waiting == prefetch + 1, "and so many may be"
        pipeline.settle()
        assert emb.store.stats().applied == {0: NUM_STEPS - 1}


@pytest.mark.parametrize("how", ["when asked", "at once", "at random"])
@pytest.mark.parametrize("capacity", [0, 1, 2, 5])
@pytest.mark.parametrize("postpush", [False, True])
class TestStaleness:
    def test_rows_lack_as_many_updates_as_stated(self, capacity: int, postpush: bool, how: str) -> None:
        task = Counting()
        with opened(task, ahead(capacity, postpush=postpush), answering(how)) as session:
            run_all(session, [BATCH] * 12)
        assert task.seen == [max(0, step - capacity - postpush) for step in range(12)]
        assert task.count == 12
        assert task.emb.store.stats().open_plans == 0

    def test_a_cut_is_a_fence(self, capacity: int, postpush: bool, how: str, tmp_path: Path) -> None:
        saver = Saver(tmp_path)
        wire = answering(how)

        class Saving(Hook):
            def after_run(self, context: StepContext) -> None:
                session = context.session
                assert isinstance(session, Session)
                if context.global_step == 6:
                    saver.save(session.state, background=False)
                    assert not wire.unanswered, "a fence leaves nothing on its way"
                    session.on_close(saver.close)

        task, lag = Counting(), capacity + postpush
        with opened(task, ahead(capacity, postpush=postpush), wire, hooks=(Saving(),)) as session:
            run_all(session, [BATCH] * 12)
        assert task.seen[:6] == [max(0, step - lag) for step in range(6)]
        assert task.seen[6:] == [max(6, step - lag) for step in range(6, 12)], "the next rows are read again"
        resumed = Counting()
        with opened(
            resumed, ahead(capacity, postpush=postpush), answering(how), restore=Saver(tmp_path).restore
        ) as session:
            assert resumed.count == 6
            run_all(session, [BATCH] * 6)
        assert resumed.seen == task.seen[6:]


def run_past_errors(session: Session, steps: int) -> list[OpError]:
    """Goes on after each error, as a loop of one's own may."""
    errors: list[OpError] = []
    with session.feed([BATCH] * steps) as feed:
        while True:
            try:
                session.run_next(feed)
            except OutOfRangeError:
                assert session.is_whole, "steps went on"
                return errors
            except OpError as error:
                assert not session.is_whole
                errors.append(error)


@pytest.mark.parametrize("how", ["when asked", "at once", "at random"])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
class TestFailures:
    def test_a_late_push_failure_is_raised_once_by_name_and_nothing_is_lost_or_applied_twice(
        self, prefetch: int, how: str
    ) -> None:
        wire, task = answering(how), Counting()
        wire.failures["push 3"] = UnavailableError("a server went away")
        with opened(task, ahead(prefetch), wire) as session:
            errors = run_past_errors(session, 12)
        assert [type(error) for error in errors] == [UnavailableError]
        assert str(errors[0]) == "step: the push of batch 3 of worker 0 failed: a server went away"
        assert task.count == len(task.seen), "gradients that found no way to the rows went with a later step"
        assert task.emb.store.stats().open_plans == 0

    def test_gradients_of_a_push_that_is_refused_are_dropped_and_no_others(self, prefetch: int, how: str) -> None:
        wire, task = answering(how), Counting()
        wire.failures["push 3"] = InvalidArgumentError("not to our liking")
        with opened(task, ahead(prefetch), wire) as session:
            errors = run_past_errors(session, 12)
        assert [type(error) for error in errors] == [InvalidArgumentError]
        assert "batch 3 of worker 0 failed: not to our liking" in str(errors[0])
        assert task.count == len(task.seen) - 1
        assert task.emb.store.stats().open_plans == 0

    def test_the_fence_raises_the_failure_of_the_last_push_and_writes_no_checkpoint(
        self, prefetch: int, how: str, tmp_path: Path
    ) -> None:
        wire, task = answering(how), Counting()
        wire.failures[f"push {NUM_STEPS - 1}"] = UnavailableError("a server went away")
        with opened(task, ahead(prefetch), wire) as session:
            run_all(session, [BATCH] * NUM_STEPS)
            assert session.is_whole
            with pytest.raises(UnavailableError, match=f"batch {NUM_STEPS - 1} of worker 0"), Saver(tmp_path) as saver:
                saver.save(session.state, background=False)
            assert not session.is_whole, "the dense weights have what the rows lack"
            assert not list(tmp_path.glob("*.manifest"))
        assert task.count == NUM_STEPS - 1, "and the end of the session raised nothing more"


def test_a_fence_leaves_nothing_in_flight_and_rows_are_read_again_after_it() -> None:
    wire = Wire()
    with opened(Counting(), ahead(2), wire) as session, session.feed([BATCH] * NUM_STEPS) as feed:
        session.run_next(feed)
        session.settle()
        assert not wire.unanswered
        session.run_next(feed)
        assert wire.sent == ["read 0", "read 1", "read 2", "push 0", "read 1", "read 2", "read 3"]


def test_a_fence_waits_for_rows_in_flight_where_no_push_follows_them() -> None:
    class Idle(Counting):
        def model_fn(self, features: Any, mode: Any) -> Spec:
            super().model_fn(features, mode)
            return Spec(train_op=lambda: None)

    wire = Wire()
    with opened(Idle(), ahead(2), wire) as session, session.feed([BATCH] * NUM_STEPS) as feed:
        session.run_next(feed)
        assert [each.name for each in wire.unanswered] == ["read 1", "read 2"]
        session.settle()
        assert not wire.unanswered


class Interrupted(Counting):
    """Raises what a test says, in the middle of the step of a number."""

    error: BaseException = ValueError("model")
    at_step = 4

    def model_fn(self, features: Any, mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        if ml.train.get_current_session().global_step == self.at_step:
            raise self.error
        return spec


class TestEnds:
    @pytest.mark.parametrize("error", [ValueError("model"), KeyboardInterrupt()])
    def test_an_error_of_the_model_waits_for_nothing_and_leaves_no_plan_open(self, error: BaseException) -> None:
        wire, task = Wire(), Interrupted()
        task.error = error
        with pytest.raises(type(error)), opened(task, ahead(2), wire) as session:
            run_all(session, [BATCH] * NUM_STEPS)
        del session
        error.__traceback__ = None  # it holds the graph of the last pass
        on_their_way = [each.name for each in wire.unanswered]
        assert on_their_way == ["push 1", "read 5", "push 2", "read 6", "push 3", "drop 5", "drop 6"]
        assert not [name for name in wire.waited_for if name.startswith("push")]
        task.emb.discard()
        assert not task.emb._registry._passes, "the module keeps nothing of what the store has got"
        wire.answer_all()
        assert task.emb.store.stats().open_plans == 0
        assert task.count == 4, "what was on its way arrives all the same"

    def test_a_module_continues_after_a_session_was_closed_with_pushes_in_flight(self) -> None:
        wire, task = Wire(), Interrupted()
        with pytest.raises(ValueError, match="model"), opened(task, ahead(1), wire) as session:
            run_all(session, [BATCH] * NUM_STEPS)
        task.emb.discard()
        task.emb(BATCH)["user"].sum().mul(-1).backward()
        task.emb.step()
        assert task.count == 5

    def test_what_was_postponed_and_not_sent_is_dropped(self) -> None:
        class Raising(Hook):
            def after_run(self, context: StepContext) -> None:
                if context.global_step == 3:
                    raise ValueError("hook")

        wire, task = Wire(), Counting()
        with (
            pytest.raises(ValueError, match="hook"),
            opened(task, PipelineConfig(postpush=True), wire, hooks=(Raising(),)) as session,
        ):
            run_all(session, [BATCH] * NUM_STEPS)
        assert wire.sent[-1] == "drop 2"
        assert task.count == 2
        assert task.emb.store.stats().open_plans == 0

    def test_a_failure_that_was_never_raised_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        wire, task = Wire(), Interrupted()
        wire.answer_at_once()
        wire.failures["push 3"] = UnavailableError("a server went away")
        task.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt), opened(task, ahead(1), wire) as session:
            run_all(session, [BATCH] * NUM_STEPS)
        assert "the push of batch 3 of worker 0 failed: a server went away" in caplog.text

    def test_an_interrupt_while_rows_are_waited_for_ends_their_plan_and_can_be_saved_after(self) -> None:
        wire, task = Wire(), Counting()
        wire.interrupted.add("read 4")
        with opened(task, ahead(1), wire) as session, session.feed([BATCH] * NUM_STEPS) as feed:
            for _ in range(4):
                session.run_next(feed)
            with pytest.raises(KeyboardInterrupt):
                session.run_next(feed)
            assert wire.sent[-1] == "drop 4"
            assert session.is_whole
            session.settle()
            assert [each.name for each in wire.unanswered] == ["drop 4"], "nobody waits for that"
            assert task.count == session.global_step == 4

    def test_the_next_fence_completes_an_interrupted_one(self) -> None:
        wire, task = Wire(), Counting()
        with opened(task, ahead(1), wire) as session, session.feed([BATCH] * NUM_STEPS) as feed:
            for _ in range(4):
                session.run_next(feed)
            wire.interrupted.add("push 3")
            wire.failures["push 3"] = UnavailableError("a server went away")
            with pytest.raises(KeyboardInterrupt):
                session.settle()
            assert session.is_whole
            with pytest.raises(UnavailableError, match="batch 3"):
                session.settle()
            session.settle()
