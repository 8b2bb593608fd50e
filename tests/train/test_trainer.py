from __future__ import annotations

import logging
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith import train
from monolith.checkpoint import ModelDirLock, TrainState
from monolith.checkpoint.state_dicts import model_state
from monolith.data.dataset import Dataset
from monolith.errors import AbortedError, FileUnavailableError, NotFoundError, UnavailableError
from monolith.hook import Hook, HookedSession, StepContext
from monolith.testing import ExampleTask, FakeClock, NumberedBatches
from monolith.train import PipelineConfig, SavingConfig, Spec, Trainer, TrainerConfig
from monolith.train._training_loop import TrainingLoop


def steps_of(model_dir: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest"))


def content(state: TrainState) -> dict[str, torch.Tensor]:
    """Everything that was learned, to compare bit for bit."""
    assert state.model is not None
    emb = state.embeddings["emb"]
    rows = {name: emb.lookup(name, torch.arange(1000)) for name in emb.slots}
    weights = {name: value for name, value in model_state(state.model).items() if isinstance(value, torch.Tensor)}
    return rows | weights


def assert_equal_bits(left: TrainState, right: TrainState) -> None:
    mine, others = content(left), content(right)
    assert mine.keys() == others.keys()
    for name in mine:
        assert torch.equal(mine[name], others[name]), name


class FailOnce(Hook):
    """Raises an error before one step, the first time that step comes."""

    def __init__(self, step: int, error: Exception) -> None:
        self.step, self.error, self.created = step, error, 0

    def after_create_session(self, session: HookedSession) -> None:
        self.created += 1

    def before_run(self, context: StepContext) -> None:
        if context.global_step == self.step and self.created == 1:
            raise self.error


class TestTrain:
    def test_to_the_end_of_the_data(self, tmp_path: Path) -> None:
        state = Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path))).train()
        assert state.global_step == 20
        assert state.position() == b"20"
        assert steps_of(tmp_path) == [20], "none at the start, one at the end"

    def test_a_class_or_parameters_will_do(self) -> None:
        p = ExampleTask.params()
        p.num_batches = 2
        assert Trainer(ExampleTask).train(steps=1).global_step == 1
        assert Trainer(p).train().global_step == 2
        with pytest.raises(TypeError, match="expected a Task, got Linear"):
            Trainer(ml.train.params(torch.nn.Linear).set(in_features=1, out_features=1))

    def test_steps_count_from_here_and_max_steps_from_the_beginning(self, tmp_path: Path) -> None:
        config = TrainerConfig(model_dir=str(tmp_path))
        assert Trainer(ExampleTask(), config).train(steps=4).global_step == 4
        assert Trainer(ExampleTask(), config).train(steps=4).global_step == 8
        assert Trainer(ExampleTask(), config).train(max_steps=10).global_step == 10
        assert Trainer(ExampleTask(), config).train(max_steps=10).global_step == 10
        assert Trainer(ExampleTask(), config).train(steps=100, max_steps=12).global_step == 12

    def test_the_task_parameters_also_set_max_steps(self) -> None:
        task = ExampleTask()
        task.p.train.max_steps = 3
        assert Trainer(task).train().global_step == 3

    def test_a_rule_is_learned(self) -> None:
        task = ExampleTask()
        task.p.set(num_batches=150, batch_size=256)
        trainer = Trainer(task)
        trainer.train()
        found = trainer.evaluate(steps=4)
        assert found["auc"] > 0.95
        assert found["examples"] == 1024
        assert found["global_step"] == 150

    def test_hooks_come_in_the_documented_order(self, tmp_path: Path) -> None:
        log: list[str] = []

        class Named(Hook):
            def __init__(self, name: str) -> None:
                self.name = name

            def begin(self) -> None:
                log.append(self.name)

        class Hooked(ExampleTask):
            def training_hooks(self) -> list[Hook]:
                return [Named("task")]

            def training_chief_hooks(self) -> list[Hook]:
                return [Named("chief")]

        config = TrainerConfig(model_dir=str(tmp_path))
        Trainer(Hooked(), config, hooks=[Named("trainer")]).train(steps=1, hooks=[Named("call")])
        assert log == ["chief", "trainer", "call", "task"]

    def test_async_functions_of_the_task_run_concurrently_with_the_next_step(self) -> None:
        pushed: list[float] = []

        class Pushing(ExampleTask):
            def build(self) -> None:
                super().build()
                self.push = self.ctx.add_async_function(lambda x: pushed.append(float(x)))

            def model_fn(self, features: Any, mode: Any) -> Spec:
                self.push(torch.tensor(float(train.get_current_session().global_step)))
                return super().model_fn(features, mode)

        Trainer(Pushing()).train(steps=4)
        assert pushed == [0.0, 1.0, 2.0, 3.0]

    def test_an_iterable_input_is_trained_and_starts_over_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Iterating(ExampleTask):
            def input_fn(self, mode: Any) -> Any:
                return iter([NumberedBatches(num_batches=9).make(n) for n in range(3)])

        config = TrainerConfig(model_dir=str(tmp_path))
        assert Trainer(Iterating(), config).train().global_step == 3
        assert "starts over" not in caplog.text
        assert Trainer(Iterating(), config).train().global_step == 6
        assert caplog.text.count("starts over") == 1


class TestSaving:
    def test_checkpoints_are_saved_every_n_steps_and_at_the_end(self, tmp_path: Path) -> None:
        saving = SavingConfig(every_steps=8, max_to_keep=2)
        Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path), saving=saving)).train()
        assert steps_of(tmp_path) == [16, 20]

    def test_both_kinds_of_interval_are_refused(self) -> None:
        with pytest.raises(ValueError, match="every_steps or every_seconds, got both"):
            SavingConfig(every_steps=1, every_seconds=1.0)

    def test_the_directory_is_free_afterwards_also_after_an_error(self, tmp_path: Path) -> None:
        config = TrainerConfig(model_dir=str(tmp_path))
        with pytest.raises(ValueError, match="mine"):
            Trainer(ExampleTask(), config, hooks=[FailOnce(1, ValueError("mine"))]).train()
        ModelDirLock(str(tmp_path)).release()

    def test_a_second_chief_is_refused(self, tmp_path: Path) -> None:
        lock = ModelDirLock(str(tmp_path))
        try:
            with pytest.raises(UnavailableError, match="in use by process"):
                Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path))).train()
        finally:
            lock.release()


PIPELINES = [
    PipelineConfig(),
    PipelineConfig(prefetch=1, postpush=True),
    PipelineConfig(prefetch=3),
    PipelineConfig(postpush=True),
]


class TestResume:
    @pytest.mark.parametrize("pipeline", PIPELINES[:3], ids=str)
    def test_a_run_in_pieces_equals_one_in_one_go_bit_for_bit(
        self, tmp_path: Path, pipeline: PipelineConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def config(name: str) -> TrainerConfig:
            return TrainerConfig(
                model_dir=str(tmp_path / name),
                saving=SavingConfig(every_steps=5),
                pipeline=pipeline,
                deterministic=True,
            )

        whole = Trainer(ExampleTask(), config("whole")).train()
        torch.manual_seed(12345)
        # Killed at step 8, and the state of step 8 is lost: as SIGKILL does.
        killed = Trainer(ExampleTask(), config("pieces"), hooks=[FailOnce(8, ValueError("killed"))])
        with monkeypatch.context() as patch:
            patch.setattr(TrainingLoop, "_save_after", lambda *_: None)
            with pytest.raises(ValueError, match="killed"):
                killed.train()
        assert steps_of(tmp_path / "pieces") == [5]
        torch.manual_seed(54321)
        Trainer(ExampleTask(), config("pieces")).train(max_steps=10)
        resumed = Trainer(ExampleTask(), config("pieces")).train()
        assert_equal_bits(whole, resumed)
        assert whole.applied == resumed.applied

    def test_every_example_is_trained_once(self, tmp_path: Path) -> None:
        seen: list[int] = []

        class Seeing(ExampleTask):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                seen.append(int(features["req_time"][0] - 1_700_000_000) // 60)
                return super().model_fn(features, mode)

        config = TrainerConfig(model_dir=str(tmp_path), pipeline=PipelineConfig(prefetch=3, postpush=True))
        for _ in range(4):
            Trainer(Seeing(), config).train(steps=5)
        assert seen == list(range(20))


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "pipeline"), [(AbortedError("gone"), PIPELINES[0]), (UnavailableError("gone"), PIPELINES[1])]
    )
    def test_preemption_goes_back_to_the_last_checkpoint_in_place(
        self, tmp_path: Path, error: Exception, pipeline: PipelineConfig
    ) -> None:
        def config(name: str) -> TrainerConfig:
            saving = SavingConfig(every_steps=5)
            return TrainerConfig(model_dir=str(tmp_path / name), saving=saving, pipeline=pipeline, deterministic=True)

        fail = FailOnce(8, error)
        interrupted = Trainer(ExampleTask(), config("interrupted"), hooks=[fail]).train()
        assert fail.created == 2
        assert interrupted.global_step == 20
        assert_equal_bits(interrupted, Trainer(ExampleTask(), config("whole")).train())

    def test_without_a_checkpoint_it_starts_from_the_beginning(self) -> None:
        fail = FailOnce(3, AbortedError("gone"))
        assert Trainer(ExampleTask(), hooks=[fail]).train().global_step == 20

    def test_a_failure_that_stays_is_waited_for_longer_and_longer(self) -> None:
        class Stubborn(Hook):
            times = 0

            def before_run(self, context: StepContext) -> None:
                self.times += 1
                if self.times < 6:
                    raise AbortedError("still gone")

        clock = FakeClock()
        Trainer(ExampleTask(), hooks=[Stubborn()], clock=clock).train(steps=1)
        assert clock.monotonic() == 1 + 2 + 4 + 8

    def test_a_file_that_fails_is_no_preemption(self, tmp_path: Path) -> None:
        fail = FailOnce(8, FileUnavailableError("file 'x': Input/output error"))
        config = TrainerConfig(model_dir=str(tmp_path), saving=SavingConfig(every_steps=5))
        with pytest.raises(FileUnavailableError, match="Input/output error"):
            Trainer(ExampleTask(), config, hooks=[fail]).train()
        assert fail.created == 1
        assert steps_of(tmp_path) == [5, 8], "the last whole step is saved"

    def test_a_file_that_fails_while_starting_over_ends_it(self) -> None:
        class Failing(FailOnce):
            def after_create_session(self, session: HookedSession) -> None:
                super().after_create_session(session)
                if self.created == 2:
                    raise FileUnavailableError("file 'x': Input/output error")

        fail = Failing(2, AbortedError("gone"))
        with pytest.raises(FileUnavailableError):
            Trainer(ExampleTask(), hooks=[fail], clock=FakeClock()).train()
        assert fail.created == 2

    @pytest.mark.parametrize("spread", [1, 3], ids=["at one step", "at changing steps"])
    def test_a_run_that_never_gets_to_its_next_checkpoint_is_ended(self, tmp_path: Path, spread: int) -> None:
        class Hopeless(Hook):
            created = 0

            def after_create_session(self, session: HookedSession) -> None:
                self.created += 1

            def before_run(self, context: StepContext) -> None:
                if context.global_step == 7 + self.created % spread:
                    raise UnavailableError("still gone")

        hopeless = Hopeless()
        config = TrainerConfig(model_dir=str(tmp_path), saving=SavingConfig(every_steps=5))
        with pytest.raises(UnavailableError, match=r"started over 20 times from step 5 without .*: still gone"):
            Trainer(ExampleTask(), config, hooks=[hopeless], clock=FakeClock()).train()
        assert hopeless.created == 1 + 1 + 20, "once to get to step 5, then as often as stated"

    def test_a_session_that_can_never_be_made_again_ends_it(self) -> None:
        class Never(FailOnce):
            def after_create_session(self, session: HookedSession) -> None:
                super().after_create_session(session)
                if self.created > 1:
                    raise UnavailableError("not yet")

        clock = FakeClock()
        fail = Never(2, AbortedError("gone"))
        with pytest.raises(UnavailableError, match="started over 20 times from step 0"):
            Trainer(ExampleTask(), hooks=[fail], clock=clock).train(steps=5)
        assert fail.created == 21
        assert clock.monotonic() == sum(min(2**wait, 30) for wait in range(19))

    def test_reaching_another_checkpoint_resets_the_retry_count(self, tmp_path: Path) -> None:
        class Often(Hook):
            def __init__(self) -> None:
                self.created = 0
                self.left = {6: 15, 11: 15, 16: 15}

            def after_create_session(self, session: HookedSession) -> None:
                self.created += 1

            def before_run(self, context: StepContext) -> None:
                if self.left.get(context.global_step, 0):
                    self.left[context.global_step] -= 1
                    raise AbortedError("gone")

        often = Often()
        config = TrainerConfig(model_dir=str(tmp_path), saving=SavingConfig(every_steps=5))
        assert Trainer(ExampleTask(), config, hooks=[often], clock=FakeClock()).train().global_step == 20
        assert often.created == 46

    def test_a_session_that_cannot_be_recreated_immediately_is_retried(self) -> None:
        class Late(FailOnce):
            def after_create_session(self, session: HookedSession) -> None:
                super().after_create_session(session)
                if self.created in {2, 3}:
                    raise UnavailableError("not yet")

        clock = FakeClock()
        fail = Late(2, AbortedError("gone"))
        assert Trainer(ExampleTask(), hooks=[fail], clock=clock).train(steps=5).global_step == 5
        assert (fail.created, clock.monotonic()) == (4, 3.0)

    def test_other_errors_end_training_with_the_last_complete_step_saved(self, tmp_path: Path) -> None:
        for pipeline in PIPELINES[:2]:
            model_dir = tmp_path / f"{pipeline.prefetch}{pipeline.postpush}"
            config = TrainerConfig(model_dir=str(model_dir), pipeline=pipeline)
            with pytest.raises(ValueError, match="mine"):
                Trainer(ExampleTask(), config, hooks=[FailOnce(7, ValueError("mine"))]).train()
            assert steps_of(model_dir) == [7]
            assert Trainer(ExampleTask(), config).train().position() == b"20"

    def test_an_interrupt_saves_too(self, tmp_path: Path) -> None:
        class Interrupting(Hook):
            def before_run(self, context: StepContext) -> None:
                if context.global_step == 4:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path)), hooks=[Interrupting()]).train()
        assert steps_of(tmp_path) == [4]

    def test_a_run_that_fails_before_its_first_step_leaves_no_checkpoint(self, tmp_path: Path) -> None:
        class Unreadable(ExampleTask):
            def input_fn(self, mode: Any) -> Any:
                raise ValueError("no such file")

        class Wrong(ExampleTask):
            def model_fn(self, features: Any, mode: Any) -> Any:
                raise ValueError("no such file")

        config = TrainerConfig(model_dir=str(tmp_path))
        for task in (Unreadable, Wrong):
            with pytest.raises(ValueError, match="no such file"):
                Trainer(task(), config).train()
            assert steps_of(tmp_path) == []
        Trainer(ExampleTask(), config).train(steps=3)
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(ValueError, match="no such file"):
            Trainer(Wrong(), config).train()
        assert sorted(path.name for path in tmp_path.iterdir()) == before, "what it began with stays as it is"

    def test_a_half_made_step_is_not_saved(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        class Breaking(ExampleTask):
            def optimizers(self, model: torch.nn.Module) -> torch.optim.Optimizer:
                optimizer = torch.optim.SGD(model.parameters())

                def fail(*_: Any) -> None:
                    raise ValueError("in the middle")

                optimizer.register_step_post_hook(fail)
                return optimizer

        with pytest.raises(ValueError, match="in the middle"):
            Trainer(Breaking(), TrainerConfig(model_dir=str(tmp_path))).train()
        assert steps_of(tmp_path) == []
        assert "is not saved" in caplog.text

    def test_weights_that_are_not_numbers_are_not_saved(self, tmp_path: Path) -> None:
        class Spoiling(FailOnce):
            def before_run(self, context: StepContext) -> None:
                session: Any = context.session
                if context.global_step == self.step:
                    session.state.model["top"].weight.data[0, 0] = math.nan
                super().before_run(context)

        with pytest.raises(ValueError, match="mine"):
            Trainer(
                ExampleTask(), TrainerConfig(model_dir=str(tmp_path)), hooks=[Spoiling(5, ValueError("mine"))]
            ).train()
        assert steps_of(tmp_path) == []

    def test_an_error_of_the_save_does_not_hide_the_first_one(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "a_file").write_text("")
        config = TrainerConfig(model_dir=str(tmp_path / "run"))

        class Removing(FailOnce):
            def before_run(self, context: StepContext) -> None:
                if context.global_step == self.step:
                    for path in (tmp_path / "run").iterdir():
                        path.unlink()
                    (tmp_path / "run").rmdir()
                super().before_run(context)

        with pytest.raises(ValueError, match="mine"):
            Trainer(ExampleTask(), config, hooks=[Removing(2, ValueError("mine"))]).train()
        assert "could not be saved" in caplog.text

    def test_which_errors_count_can_be_narrowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert set(train.PREEMPTION_ERRORS) == {AbortedError, UnavailableError}
        monkeypatch.setattr("monolith.train._preemption._errors", train.preemption_errors())
        train.enable_monkey_patch()
        assert list(train.PREEMPTION_ERRORS) == [AbortedError]
        with pytest.raises(UnavailableError):
            Trainer(ExampleTask(), hooks=[FailOnce(1, UnavailableError("gone"))]).train()
        assert Trainer(ExampleTask(), hooks=[FailOnce(1, AbortedError("gone"))]).train(steps=3).global_step == 3


class TestLooking:
    def test_evaluation_inserts_and_saves_nothing(self, tmp_path: Path) -> None:
        trainer = Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path)))
        state = trainer.train(steps=2)
        before, files = content(state), sorted(path.name for path in tmp_path.iterdir())
        first, second = trainer.evaluate(), trainer.evaluate()
        assert first == second
        assert sorted(path.name for path in tmp_path.iterdir()) == files
        after = content(state)
        assert all(torch.equal(before[name], after[name]) for name in before)

    def test_another_process_evaluates_the_newest_checkpoint(self, tmp_path: Path) -> None:
        config = TrainerConfig(model_dir=str(tmp_path))
        trainer = Trainer(ExampleTask(), config)
        trainer.train()
        lock = ModelDirLock(str(tmp_path))
        try:
            assert Trainer(ExampleTask(), config).evaluate() == trainer.evaluate(), "it needs no lock"
        finally:
            lock.release()

    def test_loss_is_the_mean_over_examples(self) -> None:
        class Uneven(ExampleTask):
            def input_fn(self, mode: Any) -> Any:
                sizes = (3, 5) if mode == "eval" else (4,)
                return [NumberedBatches(num_batches=9, batch_size=size).make(size) for size in sizes]

            def model_fn(self, features: Any, mode: Any) -> Spec:
                return Spec(torch.tensor(float(features.num_rows)), train_op=lambda: None)

        trainer = Trainer(Uneven())
        trainer.train()
        assert trainer.evaluate() == {"loss": (3 * 3 + 5 * 5) / 8, "examples": 8, "global_step": 0}

    def test_heads_by_name_have_an_auc_each_and_other_labels_none(self) -> None:
        class Heads(ExampleTask):
            def model_fn(self, features: Any, mode: Any) -> Spec:
                spec = super().model_fn(features, mode)
                predictions = {"click": spec.predictions, "time": spec.predictions * 100}
                return Spec(spec.loss, predictions, {"click": features["label"], "time": features["label"] * 60})

        trainer = Trainer(Heads())
        trainer.train(steps=2)
        assert sorted(trainer.evaluate(steps=2)) == ["click_auc", "examples", "global_step", "loss"]

    def test_predictions_of_each_batch(self) -> None:
        task = ExampleTask()
        trainer = Trainer(task)
        trainer.train(steps=3)
        made = list(trainer.predict())
        assert len(made) == 20
        features = task.input_fn("predict").make(4)
        assert torch.equal(made[4], task.model_fn(features, "predict").predictions.detach())

    def test_evaluate_and_predict_need_a_trained_state_or_a_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match="nothing trained yet"):
            Trainer(ExampleTask()).evaluate()
        with pytest.raises(NotFoundError, match="has no checkpoint"):
            next(Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path))).predict())


def test_a_second_trainer_runs_inside_a_hook_of_the_first(tmp_path: Path) -> None:
    class Nested(Hook):
        def after_run(self, context: StepContext) -> None:
            if context.global_step == 2:
                inner = Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path / "inner")))
                assert inner.train(steps=3).global_step == 3
                assert train.get_current_session() is context.session

    outer = Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path / "outer")), hooks=[Nested()])
    assert outer.train(steps=4).global_step == 4


def test_batches_of_a_live_stream_do_not_wait_for_the_next_one() -> None:
    """With a pipeline, the last batch there is must be trained although no other comes."""
    trained: list[int] = []

    class Live(Dataset[Any]):
        def read(self, position: bytes | None = None) -> Any:
            source = NumberedBatches(num_batches=100).read(position)

            class Reading(type(source)):  # type: ignore[misc]
                def __next__(self) -> Any:
                    batch = source.__next__()
                    if int(source.position) > 3:
                        while len(trained) < 3:
                            clock.wait(0.01)
                        raise StopIteration
                    return batch

            made = Reading.__new__(Reading)
            made._dataset, made._number = source._dataset, 0  # type: ignore[attr-defined]
            return made

    clock = threading.Event()

    class Streaming(ExampleTask):
        def input_fn(self, mode: Any) -> Any:
            return Live()

        def model_fn(self, features: Any, mode: Any) -> Spec:
            trained.append(1)
            return super().model_fn(features, mode)

    Trainer(Streaming(), TrainerConfig(pipeline=PipelineConfig(prefetch=2))).train()
    assert len(trained) == 3


def test_the_log_reports_the_checkpoint_a_run_resumes_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = TrainerConfig(model_dir=str(tmp_path))
    Trainer(ExampleTask(), config).train(steps=2)
    with caplog.at_level(logging.INFO):
        Trainer(ExampleTask(), config).train(steps=2)
    assert f"resumes from {tmp_path}/model.ckpt-2" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worker_index": 1}, "below num_workers"),
        ({"worker_index": -1}, ">= 0"),
        ({"model_dirr": "x"}, "did you mean 'model_dir'"),
    ],
)
def test_wrong_configs_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        TrainerConfig(**options)


def test_evaluating_keeps_the_best_checkpoint(tmp_path: Path) -> None:
    """The loss falls, so that by the largest loss the first one is the best, which retention would delete."""
    saving = SavingConfig(max_to_keep=1, best_metric="loss", best_mode="max")
    trainer = Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path), saving=saving))
    for _ in range(3):
        trainer.train(steps=5)
        trainer.evaluate(steps=2)
    assert sorted(path.stem for path in tmp_path.glob("model.ckpt-*.manifest")) == ["model.ckpt-15", "model.ckpt-5"]
    with pytest.raises(ValueError, match=r"best_metric keeps a checkpoint of one model directory; give model_dir"):
        TrainerConfig(saving=SavingConfig(best_metric="auc"))
    with pytest.raises(ValueError, match="best_mode must be 'max' or 'min', got 'most'"):
        SavingConfig(best_mode="most")  # type: ignore[arg-type]
