"""The saving hook: when it saves, what it tells whom, and what it does when a save fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hooks.sessions import FakeSession
from monolith.checkpoint import SavedCheckpoint, SaveProtocol, Saver, TrainState
from monolith.checkpoint.state_files import MONOLITH_CHECKPOINT
from monolith.errors import FailedPreconditionError, ResourceExhaustedError, UnavailableError
from monolith.hook import Hook, HookedSession
from monolith.hooks import (
    CheckpointRestorerHook,
    NoFirstSaveCheckpointSaverHook,
    SaverListener,
    SecondOrStepTimerWithTideSetting,
)
from monolith.observe import MetricClient, MetricRecorder
from monolith.testing import FakeClock, StepLoop


class Listener(SaverListener):
    """Writes down what it is told; may ask to stop."""

    def __init__(self, *, stops: bool = False, fails: bool = False) -> None:
        self.told: list[tuple[str, int]] = []
        self._stops = stops
        self._fails = fails

    def begin(self) -> None:
        self.told.append(("begin", -1))

    def before_save(self, session: HookedSession, global_step_value: int) -> None:
        self.told.append(("before", global_step_value))
        if self._fails:
            raise RuntimeError("a guard that fails")

    def after_save(self, session: HookedSession, global_step_value: int) -> bool | None:
        self.told.append(("after", global_step_value))
        if self._fails:
            raise RuntimeError("a guard that fails")
        return self._stops

    def end(self, session: HookedSession, global_step_value: int) -> None:
        self.told.append(("end", global_step_value))


class FailingSaver(Saver):
    """Fails the first so many times."""

    failures = 0

    def save(self, state: TrainState, **options: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise ResourceExhaustedError("disk full, says the test")
        return super().save(state, **options)


def small_state() -> TrainState:
    return TrainState(model=torch.nn.Linear(2, 1))


def steps_in(model_dir: Path) -> set[int]:
    return {int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest")}


def train(hooks: list[Hook], state: TrainState, count: int) -> StepLoop:
    def step() -> None:
        state.global_step += 1

    with StepLoop(hooks) as loop:
        for _ in range(count):
            if loop.stop_requested:
                break
            loop.run(step)
    return loop


def test_saves_happen_not_at_first_but_every_n_steps_and_at_the_end(tmp_path: Path) -> None:
    state = small_state()
    seen = []

    class Looks(Hook):
        def after_create_session(self, session: HookedSession) -> None:
            seen.append(steps_in(tmp_path))

    hook = NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state, save_steps=3)
    train([hook, Looks()], state, 7)
    assert seen == [set()]
    assert (tmp_path / MONOLITH_CHECKPOINT).exists()
    assert steps_in(tmp_path) == {3, 6, 7}
    assert hook.last_saved_step == 7


def test_a_first_save_on_request(tmp_path: Path) -> None:
    state = small_state()
    train([NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state, no_first_save=False)], state, 0)
    assert steps_in(tmp_path) == {0}


def test_a_session_that_is_built_again_makes_no_first_save(tmp_path: Path) -> None:
    state = small_state()
    hook = NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state, no_first_save=False)
    session = FakeSession()
    hook.begin()
    hook.after_create_session(session)
    state.global_step = session.global_step = 5
    hook.after_create_session(session)
    session.close()
    assert steps_in(tmp_path) == {0}


def test_without_a_step_nothing_is_saved_at_the_end(tmp_path: Path) -> None:
    state = small_state()
    train([NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state)], state, 0)
    assert steps_in(tmp_path) == set()


@pytest.mark.parametrize("background", [False, True])
def test_by_time_and_by_the_tide(tmp_path: Path, *, background: bool) -> None:
    state, clock = small_state(), FakeClock(now=12 * 3600.0)
    timer = SecondOrStepTimerWithTideSetting(
        100.0, tide_every_secs=10.0, clock=clock, tide_start_hour=0, tide_start_minute=0, tide_end_hour=13,
        tide_end_minute=0,
    )  # fmt: skip
    hook = NoFirstSaveCheckpointSaverHook(Saver(tmp_path, background=background, clock=clock), state=state, timer=timer)
    with StepLoop([hook]) as loop:
        for seconds in (50, 49, 1, 3600 - 110, 5, 5, 5, 5):
            clock.advance(seconds)
            loop.run(lambda: setattr(state, "global_step", state.global_step + 1))
    # 100 s inside the window; outside, every 10 s
    assert steps_in(tmp_path) == {3, 4, 6, 8}


@pytest.mark.parametrize("background", [False, True])
def test_a_save_on_demand_is_committed_when_it_returns(tmp_path: Path, *, background: bool) -> None:
    state = small_state()
    hook = NoFirstSaveCheckpointSaverHook(Saver(tmp_path, background=background), state=state, save_steps=3)
    with StepLoop([hook]) as loop:
        for number in range(1, 6):
            loop.run(lambda: setattr(state, "global_step", state.global_step + 1))
            if number == 2:
                saved = hook.trigger_save(loop)
                assert saved is not None
                assert saved.step == 2
                assert steps_in(tmp_path) == {2}
    assert steps_in(tmp_path) == {2, 5}  # the timer counts from the save on demand


def test_saves_on_demand_from_other_threads_take_turns(tmp_path: Path) -> None:
    state = small_state()
    hook = NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state)
    with StepLoop([hook]) as loop:
        loop.run(lambda: setattr(state, "global_step", state.global_step + 1))
        threads = [threading.Thread(target=hook.trigger_save, args=(loop,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert steps_in(tmp_path) == {1}


def test_one_failure_is_made_good_by_the_second_attempt(tmp_path: Path) -> None:
    state, recorder = small_state(), MetricRecorder()
    saver, listener, guard = FailingSaver(tmp_path), Listener(), Listener()
    saver.failures = 1
    hook = NoFirstSaveCheckpointSaverHook(
        saver, state=state, save_steps=2, listeners=[listener], guard_saver_listeners=[guard],
        metrics=MetricClient("t", recorder=recorder),
    )  # fmt: skip
    train([hook], state, 2)
    assert steps_in(tmp_path) == {2}
    assert listener.told == [("begin", -1), ("before", 2), ("before", 2), ("after", 2), ("end", 2)]
    assert guard.told == [("begin", -1), ("before", 2), ("after", 2), ("end", 2)]
    assert recorder.counter("t.save_checkpoint", {"mode": "full"}) == 1
    assert recorder.counter("t.save_checkpoint_failed", {"mode": "full"}) == 1
    assert recorder.timer("t.save_checkpoint_time", {"mode": "full"}).count == 1


def test_two_failures_are_raised_and_the_guard_is_notified_of_the_end(tmp_path: Path) -> None:
    state, guard = small_state(), Listener()
    saver = FailingSaver(tmp_path)
    saver.failures = 9
    hook = NoFirstSaveCheckpointSaverHook(saver, state=state, save_steps=1, guard_saver_listeners=[guard])
    with pytest.raises(ResourceExhaustedError, match="disk full"):
        train([hook], state, 3)
    assert guard.told == [("begin", -1), ("before", 1), ("after", 1)]
    assert saver.failures == 7


def test_failures_can_be_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = small_state()
    saver = FailingSaver(tmp_path)
    saver.failures = 2
    hook = NoFirstSaveCheckpointSaverHook(saver, state=state, save_steps=1, ignore_save_errors=True)
    train([hook], state, 2)
    assert steps_in(tmp_path) == {2}
    assert "attempt 2 of 2 failed: disk full" in caplog.text

    saver.failures = 2
    with StepLoop([hook]) as loop:
        assert hook.trigger_save(loop, ignore_save_errors=True) is None
        saver.failures = 2
        with pytest.raises(ResourceExhaustedError):
            hook.trigger_save(loop)


def test_a_failure_in_the_background_is_noticed_and_made_good(tmp_path: Path) -> None:
    state, listener = small_state(), Listener()
    saver = Saver(tmp_path, background=True)
    hook = NoFirstSaveCheckpointSaverHook(saver, state=state, save_steps=2, listeners=[listener])
    with StepLoop([hook]) as loop:

        def step() -> None:
            state.global_step += 1

        loop.run(step)
        (tmp_path / "model.ckpt-2.safetensors").mkdir()  # what is to be written cannot be
        loop.run(step)
        while hook._in_background is not None and not hook._in_background.pending.done:
            pass
        loop.run(step)  # hears of it, and saves step 3 instead
    assert steps_in(tmp_path) == {3}
    assert [told for told in listener.told if told[0] == "after"] == [("after", 3)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_lost_during_a_background_save_learns_how_that_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    state, may_write = small_state(), threading.Event()

    class Held(SaveProtocol):
        def write(self, work: Callable[[], SavedCheckpoint], *, in_background: bool) -> SavedCheckpoint:
            may_write.wait(60)
            return super().write(work, in_background=in_background)

    saver = Saver(tmp_path, background=True, protocol=Held())
    hook = NoFirstSaveCheckpointSaverHook(saver, state=state, save_steps=2)
    if fails:
        (tmp_path / "model.ckpt-2.safetensors").mkdir()  # what is to be written cannot be

    def step() -> None:
        state.global_step += 1
        if state.global_step == 3:
            may_write.set()
            raise UnavailableError("a server went away")

    def run() -> None:
        with StepLoop([hook]) as loop:
            for _ in range(3):
                loop.run(step)

    with pytest.raises(UnavailableError, match="went away"):
        run()
    assert hook.last_saved_step == (None if fails else 2)
    assert ("attempt 1 of 2 failed" in caplog.text) == fails


def test_guards_that_fail_stop_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = small_state()
    hook = NoFirstSaveCheckpointSaverHook(
        Saver(tmp_path), state=state, save_steps=1, guard_saver_listeners=[Listener(fails=True)]
    )
    train([hook], state, 1)
    assert steps_in(tmp_path) == {1}
    assert caplog.text.count("RuntimeError: a guard that fails") == 2


def test_a_listener_may_end_training(tmp_path: Path) -> None:
    state = small_state()
    hook = NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state, save_steps=2, listeners=[Listener(stops=True)])
    assert train([hook], state, 10).global_step == 2


def test_dense_only_saves_skip_what_the_full_saver_has_and_make_no_last_one(tmp_path: Path) -> None:
    state = small_state()
    full = NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state, save_steps=4)
    dense = NoFirstSaveCheckpointSaverHook(
        Saver(tmp_path / "dense_only", dense_only=True), state=state, save_steps=2, full_saver_hook=full
    )
    train([full, dense], state, 7)
    assert steps_in(tmp_path) == {4, 7}
    assert steps_in(tmp_path / "dense_only") == {2, 6}


def test_the_last_save_can_be_forced_or_skipped(tmp_path: Path) -> None:
    for final, expected in (("always", {2}), ("never", set())):
        state = small_state()
        folder = tmp_path / final
        hook = NoFirstSaveCheckpointSaverHook(Saver(folder), state=state, final_save=final)  # type: ignore[arg-type]
        train([hook], state, 2)
        assert steps_in(folder) == expected


def test_two_chiefs_are_reported_before_they_train(tmp_path: Path) -> None:
    state = small_state()
    reason = r"in use by process \d+ on host .*\(this process\)"
    with (
        StepLoop([NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state)]),
        pytest.raises(UnavailableError, match=reason),
    ):
        train([NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state)], state, 1)
    train([NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state)], state, 1)


def test_a_run_resumes_through_hooks(tmp_path: Path) -> None:
    state = small_state()
    train([NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=state)], state, 3)
    again = small_state()
    restorer = CheckpointRestorerHook(Saver(tmp_path), state=again)
    with StepLoop([restorer]):
        assert again.global_step == 3
        assert restorer.restored is not None
        assert restorer.restored.step == 3
    assert again.model is not None
    assert state.model is not None
    assert all(torch.equal(*pair) for pair in zip(again.model.parameters(), state.model.parameters(), strict=True))


def test_the_state_of_the_session_is_saved_and_restored_where_none_is_given(tmp_path: Path) -> None:
    state, again = small_state(), small_state()
    with StepLoop([NoFirstSaveCheckpointSaverHook(Saver(tmp_path))], state=state) as loop:
        for _ in range(3):
            loop.run(lambda: None)
    with StepLoop([CheckpointRestorerHook(Saver(tmp_path))], state=again) as loop:
        assert loop.global_step == 3
    assert again.model is not None
    assert state.model is not None
    assert all(torch.equal(*pair) for pair in zip(again.model.parameters(), state.model.parameters(), strict=True))


@pytest.mark.parametrize("hook_class", [CheckpointRestorerHook, NoFirstSaveCheckpointSaverHook])
def test_a_session_without_a_state_is_refused(tmp_path: Path, hook_class: Callable[[Saver], Hook]) -> None:
    loop = StepLoop([hook_class(Saver(tmp_path))])
    with pytest.raises(FailedPreconditionError, match=r"no state to save, .*StepLoop\(hooks, state="), loop:
        pass
    assert steps_in(tmp_path) == set()


def test_a_timer_and_an_interval_are_refused() -> None:
    with pytest.raises(ValueError, match="either a timer or save_secs"):
        NoFirstSaveCheckpointSaverHook(
            Saver("unused"), save_steps=1, timer=SecondOrStepTimerWithTideSetting(every_steps=1)
        )
