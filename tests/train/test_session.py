from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import monolith as ml
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from monolith.hook import Call, Hook, HookedSession, StepContext
from monolith.hooks import SetCurrentSessionHook
from monolith.optim.schedules import current_global_step
from monolith.testing import ExampleTask, NumberedBatches, StepLoop
from monolith.train import Session, Spec, Task, get_current_session


class Recorder(Hook):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def begin(self) -> None:
        self.log.append(f"{self.name}.begin")

    def after_create_session(self, session: HookedSession) -> None:
        self.log.append(f"{self.name}.after_create_session")
        session.on_close(lambda: self.log.append(f"{self.name}.closed"))

    def before_run(self, context: StepContext) -> None:
        self.log.append(f"{self.name}.before_run {context.global_step}")

    def after_run(self, context: StepContext) -> None:
        self.log.append(f"{self.name}.after_run {context.global_step}")

    def end(self, session: HookedSession) -> None:
        self.log.append(f"{self.name}.end")


def batch(number: int = 0) -> Any:
    return NumberedBatches(num_batches=100, batch_size=8).make(number)


class TestHooks:
    def test_each_method_of_all_hooks_before_the_next_method(self) -> None:
        log: list[str] = []
        with Session(ExampleTask(), hooks=[Recorder("a", log), Recorder("b", log)]) as session:
            session.run(batch())
        assert log == [
            "a.begin",
            "b.begin",
            "a.after_create_session",
            "b.after_create_session",
            "a.before_run 0",
            "b.before_run 0",
            "a.after_run 1",
            "b.after_run 1",
            "a.end",
            "b.end",
            "b.closed",
            "a.closed",
        ]

    def test_an_error_of_a_step_skips_after_run_and_end_but_not_what_was_to_be_closed(self) -> None:
        log: list[str] = []
        with pytest.raises(InvalidArgumentError), Session(ExampleTask(), hooks=[Recorder("a", log)]) as session:
            session.run({"user": torch.tensor([1])})
        assert log[-2:] == ["a.before_run 0", "a.closed"]

    def test_calls_run_alongside_the_step_and_return_results_in_their_shape(self) -> None:
        seen: list[Any] = []

        class Asking(Hook):
            def __init__(self, calls: Any) -> None:
                self.calls = calls

            def before_run(self, context: StepContext) -> Any:
                return self.calls

            def after_run(self, context: StepContext) -> None:
                seen.append(context.results)

        name: Call = lambda: threading.current_thread().name  # noqa: E731 - a call to hand over
        hooks = [
            Asking(None),
            Asking(lambda: 1),
            Asking([lambda: 2, lambda: 3]),
            Asking({"x": lambda: 4}),
            Asking(name),
        ]
        with Session(ExampleTask(), hooks=hooks) as session:
            session.run(batch())
        assert seen[:4] == [None, 1, [2, 3], {"x": 4}]
        assert seen[4].startswith("session/beside")

    def test_an_error_of_a_call_is_raised_by_the_step(self) -> None:
        def fail() -> None:
            raise ValueError("beside")

        class Failing(Hook):
            def before_run(self, context: StepContext) -> Call:
                return fail

        with pytest.raises(ValueError, match="beside"), Session(ExampleTask(), hooks=[Failing()]) as session:
            session.run(batch())

    def test_a_hook_sees_what_the_step_left(self) -> None:
        losses: list[float] = []

        class Reading(Hook):
            def after_run(self, context: StepContext) -> None:
                session = context.session
                assert isinstance(session, Session)
                assert session.last is not None
                assert session.last.loss is not None
                losses.append(float(session.last.loss))

        with Session(ExampleTask(), hooks=[Reading()]) as session:
            result = session.run(batch())
        assert losses == [float(result.loss)]  # type: ignore[arg-type]
        assert result.num_examples == 8
        assert result.predictions.shape == result.label.shape == (8,)
        assert not result.predictions.requires_grad

    def test_a_hook_that_fails_when_the_session_is_made_leaves_nothing_open(self) -> None:
        log: list[str] = []

        class Failing(Hook):
            def after_create_session(self, session: HookedSession) -> None:
                raise ValueError("not ready")

        with (
            pytest.raises(ValueError, match="not ready"),
            Session(ExampleTask(), hooks=[Recorder("a", log), Failing()]),
        ):
            pass
        assert log == ["a.begin", "a.after_create_session", "a.closed"]
        assert get_current_session() is None

    def test_a_stop_request_from_a_hook_is_honoured(self) -> None:
        class Stopping(Hook):
            def before_run(self, context: StepContext) -> None:
                context.request_stop()

        with Session(ExampleTask(), hooks=[Stopping()]) as session:
            session.run(batch())
            assert session.stop_requested
            assert session.global_step == 1


class TestStep:
    def test_it_equals_the_same_loop_by_hand(self) -> None:
        torch.manual_seed(0)
        by_hand = ExampleTask()
        by_hand.build()
        optimizer = torch.optim.Adam(by_hand.top.parameters())
        for number in range(5):
            spec = by_hand.model_fn(batch(number), "train")
            optimizer.zero_grad()
            assert spec.loss is not None
            spec.loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            by_hand.emb.step()
        torch.manual_seed(0)
        task = ExampleTask()
        with Session(task) as session:
            for number in range(5):
                session.run(batch(number))
        ids = torch.arange(1000)
        for name in ("user", "item"):
            assert torch.equal(task.emb.lookup(name, ids), by_hand.emb.lookup(name, ids))
        assert torch.equal(task.top.weight, by_hand.top.weight)

    def test_a_train_op_replaces_backward_updates_and_the_step(self) -> None:
        calls: list[int] = []

        class NonFeatureTask(Task):
            def model_fn(self, features: Any, mode: str) -> Spec:
                return Spec(torch.tensor(0.0), train_op=lambda: calls.append(int(features)))

        with Session(NonFeatureTask()) as session:
            session.run(torch.tensor(5))
            assert calls == [5]
            assert session.global_step == 0
            session.state.global_step += 1
        assert session.global_step == 1

    def test_a_loss_that_depends_on_no_embedding_trains_the_rest(self) -> None:
        class FloatFeatureTask(ExampleTask):
            def model_fn(self, features: Any, mode: str) -> Spec:
                return Spec(self.top(torch.ones(2, 8)).sum())

        task = FloatFeatureTask()
        with Session(task) as session:
            before = task.top.weight.detach().clone()
            session.run(batch())
            assert not torch.equal(task.top.weight, before)
            assert (session.global_step, task.emb.num_rows) == (1, 0)

    def test_sequences_and_columns_that_are_only_read(self) -> None:
        class SequenceFeatureTask(Task):
            def build(self) -> None:
                self.emb = ml.Embeddings({"sequence": ml.Slot(dim=5, combiner=ml.nn.FirstN(2))})

            def model_fn(self, features: Any, mode: str) -> Spec:
                return Spec(self.emb(features)["sequence"].sum(), predictions=features["sequence"].values.sum())

        task = SequenceFeatureTask()
        with Session(task) as session:
            result = session.run({"sequence": ml.Ragged.from_lists([[1], [2, 3], [4, 5, 6]])})
            assert int(result.predictions) == 21
            assert task.emb.num_rows == 6, "ids beyond the first two get a row and no gradient"

    def test_training_needs_a_loss(self) -> None:
        class NoLoss(Task):
            def model_fn(self, features: Any, mode: str) -> Spec:
                return Spec(predictions=1)

        with pytest.raises(FailedPreconditionError, match=r"NoLoss\.model_fn: training needs"), Session(NoLoss()) as s:
            s.run({})

    def test_something_else_than_a_spec_is_refused(self) -> None:
        class Wrong(Task):
            def model_fn(self, features: Any, mode: str) -> Spec:
                return 1.0  # type: ignore[return-value]

        with (
            pytest.raises(TypeError, match=r"expected Spec\(loss, predictions, label\), got float"),
            Session(Wrong()) as s,
        ):
            s.run({})

    def test_schedules_step_with_it_and_optimizers_may_have_names(self) -> None:
        class Scheduled(ExampleTask):
            def optimizers(self, model: nn.Module) -> dict[str, torch.optim.Optimizer]:
                return {"top": torch.optim.SGD(self.top.parameters(), lr=1.0)}

            def schedules(self, optimizers: Any) -> dict[str, Any]:
                return {"half": torch.optim.lr_scheduler.StepLR(optimizers["top"], 1, gamma=0.5)}

        with Session(Scheduled()) as session:
            for number in range(3):
                session.run(batch(number))
            assert session.state.optimizers["top"].param_groups[0]["lr"] == 0.125

    def test_the_global_step_is_known_inside(self) -> None:
        steps: list[int | None] = []

        class Asking(ExampleTask):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                steps.append(current_global_step())
                return super().model_fn(features, mode)

        with Session(Asking()) as session:
            session.run(batch(0))
            session.run(batch(1))
        assert steps == [0, 1]
        assert current_global_step() is None

    def test_two_passes_over_one_batch_are_one_step(self) -> None:
        class Twice(ExampleTask):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                first, second = self.emb(features), self.emb(features)
                return Spec((first.concat() + 2 * second.concat()).sum())

        class Once(ExampleTask):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                return Spec(3 * self.emb(features).concat().sum())

        rows = []
        for task in (Twice(), Once()):
            for pipeline in (None, ml.train.PipelineConfig(postpush=True)):
                with Session(task, pipeline=pipeline) as session:
                    session.run(batch())
                rows.append(task.emb.lookup("user", torch.arange(1000)))
        assert all(torch.equal(each, rows[0]) for each in rows)

    def test_two_embeddings_over_one_store_are_refused(self) -> None:
        class Shared(Task):
            def build(self) -> None:
                self.a = ml.Embeddings({"user": ml.Slot(dim=2)})
                self.b = ml.Embeddings({"user": ml.Slot(dim=2)}, store=self.a.store)

        with pytest.raises(InvalidArgumentError, match="share one store"), Session(Shared()):
            pass

    def test_rows_get_the_time_of_the_data(self) -> None:
        task = ExampleTask()
        with Session(task) as session:
            session.run(batch(3))
            for _ in range(2):  # one batch moves the clock by a day at most
                session.run(batch(3 + 2 * 24 * 60))
        first, last = (batch(number) for number in (3, 3 + 2 * 24 * 60))
        users = {*first["user"].tolist(), *last["user"].tolist()}
        # Rows of items expire after a day, by the updates themselves.
        assert task.emb.num_rows_by_slot() == {"user": len(users), "item": len({*last["item"].tolist()})}


class TestClipping:
    def grads(self, clip_norm: float | None, **params: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """How far a weight and a row moved by one step of plain gradient descent."""

        class Clipped(Task):
            def build(self) -> None:
                sgd = ml.row_optimizers.Sgd(learning_rate=1.0)
                self.emb = ml.Embeddings({"user": ml.Slot(dim=1, initializer=ml.initializers.Zeros())}, optimizer=sgd)
                self.top = nn.Linear(1, 1, bias=False)
                nn.init.constant_(self.top.weight, 2.0)

            def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.top.parameters(), lr=1.0)

            def model_fn(self, features: Any, mode: str) -> Spec:
                return Spec(3 * self.top.weight.sum() + 4 * self.emb(features)["user"].sum())

        task = Clipped()
        task.p.set(clip_norm=clip_norm, **params)
        with Session(task) as session:
            session.run({"user": torch.tensor([7])})
        return 2.0 - task.top.weight.detach().flatten(), -task.emb.lookup("user", torch.tensor([7])).flatten()

    def test_one_norm_over_weights_and_rows(self) -> None:
        weight, row = self.grads(2.5)
        torch.testing.assert_close((weight, row), (torch.tensor([1.5]), torch.tensor([2.0])))

    def test_within_the_limit_and_without_one_nothing_changes(self) -> None:
        for limit in (None, 5.0, 1000.0):
            weight, row = self.grads(limit)
            torch.testing.assert_close((weight, row), (torch.tensor([3.0]), torch.tensor([4.0])))

    def test_the_warm_up_of_the_rows_begins_with_nothing(self) -> None:
        weight, row = self.grads(2.5, sparse_norm_warmup_steps=10)
        torch.testing.assert_close((weight, row), (torch.tensor([1.5]), torch.tensor([0.0])))

    def test_decay_comes_after_clipping(self) -> None:
        weight, _ = self.grads(2.5, dense_weight_decay=0.5)
        torch.testing.assert_close(weight, torch.tensor([2.5]))

    @pytest.mark.parametrize("params", [{"clip_norm": 0.0}, {"clip_norm": -1.0}, {"sparse_norm_warmup_steps": 3}])
    def test_wrong_limits_are_refused(self, params: dict[str, Any]) -> None:
        task = ExampleTask()
        task.p.set(**params)
        with pytest.raises(ValueError, match="clip_norm"), Session(task):
            pass


class TestLooking:
    @pytest.mark.parametrize("mode", ["eval", "predict"])
    def test_nothing_changes(self, mode: Any) -> None:
        task = ExampleTask()
        with Session(task) as trained:
            trained.run(batch(0))
        rows, batches = task.emb.num_rows, task.emb.next_batch
        weight = task.top.weight.detach().clone()
        with Session(task, mode=mode, state=trained.state) as session:
            result = session.run(batch(1))
            assert not task.top.training
        assert (task.emb.num_rows, task.emb.next_batch, session.global_step) == (rows, batches, 1)
        assert torch.equal(task.top.weight, weight)
        assert (result.loss is None) == (mode == "predict")
        assert task.emb.store.stats().open_plans == 0

    def test_training_continues_after_an_evaluation(self) -> None:
        task = ExampleTask()
        with Session(task) as trained:
            trained.run(batch(0))
        with Session(task, mode="eval", state=trained.state) as session:
            session.run(batch(1))
        with Session(task, state=trained.state) as session:
            session.run(batch(2))
            assert task.top.training
        assert session.global_step == 2

    def test_an_unknown_mode_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="train, eval or predict, got 'infer'"):
            Session(ExampleTask(), mode="infer")  # type: ignore[arg-type]


class TestConfigLifetime:
    def test_it_has_no_state_before_it_is_entered_and_keeps_it_after(self) -> None:
        session = Session(ExampleTask())
        with pytest.raises(FailedPreconditionError, match="before it is entered"):
            _ = session.state
        with session:
            session.run(batch())
        assert session.state.global_step == 1
        with pytest.raises(FailedPreconditionError, match="open already"), session:
            pass

    def test_rebuilding_makes_new_modules_and_notifies_the_hooks(self) -> None:
        log: list[str] = []
        task = ExampleTask()
        with Session(task, hooks=[Recorder("a", log)]) as session:
            session.run(batch())
            first = task.emb
            session.rebuild()
            assert task.emb is not first
            assert session.global_step == 0
            session.run(batch())
        assert log == [
            "a.begin",
            "a.after_create_session",
            "a.before_run 0",
            "a.after_run 1",
            "a.closed",
            "a.after_create_session",
            "a.before_run 0",
            "a.after_run 1",
            "a.end",
            "a.closed",
        ]

    def test_restore_is_called_each_time(self) -> None:
        restored: list[object] = []
        with Session(ExampleTask(), restore=restored.append) as session:
            session.rebuild()
        assert len(restored) == 2
        assert restored[0] is not restored[1]

    def test_one_that_was_given_its_state_cannot_be_rebuilt(self) -> None:
        with Session(ExampleTask()) as first:
            pass
        with Session(ExampleTask(), state=first.state) as session, pytest.raises(FailedPreconditionError):
            session.rebuild()

    def test_a_step_that_failed_in_the_model_leaves_a_consistent_state(self) -> None:
        with Session(ExampleTask()) as session:
            session.run(batch())
            with pytest.raises(InvalidArgumentError):
                session.run({"user": torch.tensor([1])})
            assert session.is_whole

    def test_a_step_that_failed_in_its_updates_does_not(self) -> None:
        class Breaking(ExampleTask):
            def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
                optimizer = torch.optim.SGD(model.parameters())

                def fail(*_: Any) -> None:
                    raise AbortedError("in the middle")

                optimizer.register_step_post_hook(fail)
                return optimizer

        with Session(Breaking()) as session:
            with pytest.raises(AbortedError):
                session.run(batch())
            assert not session.is_whole


class TestCurrentSession:
    def test_none_outside_and_the_innermost_inside(self) -> None:
        assert get_current_session() is None
        with Session(ExampleTask()) as outer:
            assert get_current_session() is outer
            with Session(ExampleTask()) as inner:
                assert get_current_session() is inner
            assert get_current_session() is outer
        assert get_current_session() is None

    def test_the_current_session_is_cleared_after_an_error(self) -> None:
        with pytest.raises(ValueError, match="x"), Session(ExampleTask()):
            raise ValueError("x")
        assert get_current_session() is None

    def test_the_hook_makes_other_loops_known(self) -> None:
        assert get_current_session() is None
        with StepLoop([SetCurrentSessionHook()]) as loop:
            assert get_current_session() is loop
            with Session(ExampleTask()) as inner:
                assert get_current_session() is inner
            assert get_current_session() is loop
        assert get_current_session() is None

    def test_the_hook_does_not_hide_a_session_that_is_still_open(self) -> None:
        seen: list[object] = []

        class Asking(Hook):
            def end(self, session: HookedSession) -> None:
                seen.append(get_current_session())

        with Session(ExampleTask(), hooks=[SetCurrentSessionHook(), Asking()]) as session:
            session.rebuild()
            assert get_current_session() is session
        assert seen == [session]

    def test_every_thread_sees_the_one_that_runs(self) -> None:
        with ThreadPoolExecutor(1) as thread:
            ask: Callable[[], object] = lambda: thread.submit(get_current_session).result()  # noqa: E731 - short
            assert ask() is None
            with Session(ExampleTask()) as outer:
                assert ask() is outer
                with Session(ExampleTask()) as inner:
                    assert ask() is inner
                assert ask() is outer
            assert ask() is None

    def test_a_thread_that_trains_sees_its_own(self) -> None:
        both_are_open = threading.Barrier(2)

        def sees_its_own(_: int) -> bool:
            with Session(ExampleTask()) as session:
                both_are_open.wait(50)
                is_own = get_current_session() is session
                both_are_open.wait(50)
                return is_own

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(sees_its_own, range(2))) == [True, True]
        assert get_current_session() is None

    def test_a_closed_session_is_not_current_in_any_context(self) -> None:
        with Session(ExampleTask()):
            context = contextvars.copy_context()
        assert context.run(get_current_session) is None
