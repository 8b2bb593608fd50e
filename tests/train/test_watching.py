"""What a person sees of a run from Python: the bar, the history, event files, and why it ended."""

from __future__ import annotations

import io
import logging
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from monolith.hook import Hook, StepContext
from monolith.hooks import ProgressHook
from monolith.observe.progress import Progress
from monolith.testing import ExampleTask
from monolith.train import History, ReportingConfig, Trainer, TrainerConfig, _run_hooks


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def trainer_of(*, model_dir: Path | None = None, **reporting: object) -> Trainer:
    config = TrainerConfig(
        model_dir=None if model_dir is None else str(model_dir),
        reporting=ReportingConfig(**reporting),  # type: ignore[arg-type]  # as the test says
    )
    return Trainer(ExampleTask(), config)


# History


def test_training_returns_the_state_with_its_history() -> None:
    state = trainer_of(summary_every_steps=8).train()
    assert state.global_step == 20
    history = state.history
    assert history is not None
    assert history["step"] == [8.0, 16.0, 20.0]
    assert len(history["loss"]) == len(history["auc"]) == len(history["learning_rate/dense"]) == 3
    assert all(map(math.isfinite, history["loss"]))
    assert (history.num_steps, history.ended_by) == (20, "data")


def test_a_short_run_has_a_record_too() -> None:
    history = trainer_of().train(steps=3).history
    assert history is not None
    assert history["step"] == [3.0]
    assert (history.num_steps, history.ended_by) == (3, "stop")


def test_each_call_has_a_history_of_its_own() -> None:
    trainer = trainer_of(summary_every_steps=2)
    first = trainer.train(steps=4).history
    second = trainer.train(steps=4).history
    assert first is not second
    assert first is not None
    assert first["step"] == [2.0, 4.0]
    assert trainer.history["step"] == [6.0, 8.0]


def test_an_error_leaves_what_was_measured_before() -> None:
    class Fail(Hook):
        def after_run(self, context: StepContext) -> None:
            if context.global_step == 5:
                raise KeyboardInterrupt

    trainer = trainer_of(summary_every_steps=2)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(hooks=[Fail()])
    assert trainer.history["step"] == [2.0, 4.0]
    assert trainer.history.ended_by is None


def test_no_records_are_made_where_none_are_wanted(tmp_path: Path) -> None:
    state = trainer_of(model_dir=tmp_path, summary_every_steps=None).train()
    assert state.history is not None
    assert len(state.history) == 0
    assert not list(tmp_path.glob("events*"))


def test_the_error_for_an_unmeasured_name_suggests_the_measured_ones() -> None:
    history = History()
    with pytest.raises(KeyError, match="history has no 'loss'; it has nothing yet"):
        history["loss"]
    history.write(1, {"loss": 1.0})
    with pytest.raises(KeyError, match=r"history has no 'los'; did you mean 'loss'\?"):
        history["los"]


# The end


def test_a_run_that_resumes_at_the_end_of_the_data_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert trainer_of(model_dir=tmp_path).train().global_step == 20
    assert "no more data" not in caplog.text
    again = trainer_of(model_dir=tmp_path)
    state = again.train()
    assert (state.global_step, again.history.num_steps, again.history.ended_by) == (20, 0, "data")
    (warning,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "the input has no more data after step 20, so nothing was trained" in warning.getMessage()


# TensorBoard


def test_event_files_are_in_the_model_directory_where_tensorboard_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer_of(model_dir=tmp_path / "with").train(steps=2)
    assert len(list((tmp_path / "with").glob("events.out.tfevents.*"))) == 1
    monkeypatch.setattr(_run_hooks, "has_tensorboard", lambda: False)
    trainer_of(model_dir=tmp_path / "without").train(steps=2)
    assert not list((tmp_path / "without").glob("events*"))


def test_event_files_can_be_switched_off(tmp_path: Path) -> None:
    history = trainer_of(model_dir=tmp_path, tensorboard=False).train(steps=2).history
    assert history is not None
    assert len(history) == 1
    assert not list(tmp_path.glob("events*"))


def test_a_worker_that_is_not_the_chief_writes_none(tmp_path: Path) -> None:
    config = TrainerConfig(model_dir=str(tmp_path), worker_index=1, num_workers=2)
    Trainer(ExampleTask(), config).train(steps=2)
    assert not list(tmp_path.glob("events*"))


def test_options_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match=r"reporting\.tensorboard writes into the model directory; give model_dir"):
        TrainerConfig(reporting=ReportingConfig(tensorboard=True))
    with pytest.raises(ValueError, match="tensorboard=True needs records; give summary_every_steps"):
        ReportingConfig(tensorboard=True, summary_every_steps=None)
    with pytest.raises(ValueError, match="summary_every_steps must be >= 1"):
        ReportingConfig(summary_every_steps=0)


# The bar


def test_a_terminal_shows_a_bar_that_ends_where_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setenv("COLUMNS", "200")
    trainer = trainer_of()
    trainer.train(steps=3)
    trainer.train(steps=3)
    lines = file.getvalue().split("\n")
    assert "[####################] 3/3 steps (100 %), examples per second" in lines[0]
    assert "[####################] 6/6 steps (100 %)" in lines[1]
    assert ", loss 0." in lines[0]


def test_progress_is_not_shown_without_a_terminal_unless_requested(capsys: pytest.CaptureFixture[str]) -> None:
    trainer_of().train(steps=3)
    assert capsys.readouterr().err == ""
    trainer_of(progress=True).train(steps=3)
    assert capsys.readouterr().err.startswith("3/3 steps (100 %), examples per second")


def test_a_terminal_without_a_bar_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal()
    monkeypatch.setattr(sys, "stderr", file)
    trainer_of(progress=False).train(steps=3)
    assert file.getvalue() == ""


def test_a_bar_that_was_given_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    file, own = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with Progress(file=own) as bar:
        trainer_of().train(steps=3, hooks=[ProgressHook(bar)])
    assert file.getvalue() == ""
    assert own.getvalue().startswith("3 steps, ")


def test_a_notebook_shows_a_bar_without_codes_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    trainer_of().train(steps=3)
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert shown.startswith("\r")
    assert shown.endswith("\n")
    assert "[####################] 3/3 steps (100 %)" in shown.split("\r")[-1]


def test_ipython_in_a_terminal_is_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = SimpleNamespace(get_ipython=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    trainer_of().train(steps=3)
    assert capsys.readouterr().err == ""
