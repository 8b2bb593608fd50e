"""Saves and stops by files, on one rank and on several."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest
import torch
from torch import Tensor

from hooks.sessions import FakeSession
from monolith import collective
from monolith.hook import Hook
from monolith.hooks import (
    ReqTimeControlDumpHook,
    SecondOrStepTimerWithTideSetting,
    SyncTrainingBarrierSaverListener,
    SyncTrainingForceDumpHook,
    SyncTrainingSaverControlHook,
)
from monolith.testing import FakeClock


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    collective.init()
    yield
    collective.shutdown()


@pytest.fixture
def timer() -> SecondOrStepTimerWithTideSetting:
    made = SecondOrStepTimerWithTideSetting(every_steps=10**9)
    made.update_last_triggered_step(0)
    return made


def clock_at(hour: int) -> FakeClock:
    return FakeClock(now=datetime(2026, 3, 1, hour, 59, 59, tzinfo=UTC).timestamp())


def at_step(hook: Hook, step: int) -> FakeSession:
    session = FakeSession(global_step=step)
    hook.after_run(session.context())
    return session


class TestForceDump:
    def test_a_dump_file_saves_at_its_step(self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting) -> None:
        (tmp_path / "dump_200").touch()
        hook = SyncTrainingForceDumpHook(str(tmp_path), timer, clock=clock_at(3))
        for step in (100, 150, 199):
            assert not at_step(hook, step).stop_requested
            assert not timer.should_trigger_for_step(step)
        assert not at_step(hook, 200).stop_requested
        assert timer.enabled
        assert timer.should_trigger_for_step(200)
        timer.update_last_triggered_step(200)
        at_step(hook, 300)
        assert not timer.enabled

    def test_a_stop_file_saves_and_stops_at_its_step(
        self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting
    ) -> None:
        (tmp_path / "stop_200").touch()
        hook = SyncTrainingForceDumpHook(str(tmp_path), timer, clock=clock_at(3))
        assert not at_step(hook, 100).stop_requested
        assert at_step(hook, 200).stop_requested
        assert timer.should_trigger_for_step(200)

    @pytest.mark.parametrize(("hour", "enabled"), [(17, False), (18, True), (19, True), (20, False), (0, False)])
    def test_without_files_it_saves_in_the_evening(
        self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting, hour: int, enabled: bool
    ) -> None:
        assert not at_step(SyncTrainingForceDumpHook(str(tmp_path), timer, clock=clock_at(hour)), 100).stop_requested
        assert timer.enabled == enabled
        assert not timer.should_trigger_for_step(100)

    def test_it_looks_every_hundred_steps(self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting) -> None:
        (tmp_path / "stop_150").touch()
        hook = SyncTrainingForceDumpHook(str(tmp_path), timer)
        assert not at_step(hook, 150).stop_requested
        assert at_step(SyncTrainingForceDumpHook(str(tmp_path), timer, step_interval=50), 150).stop_requested
        with pytest.raises(ValueError, match="step_interval must be >= 1, got 0"):
            SyncTrainingForceDumpHook(str(tmp_path), timer, step_interval=0)

    def test_a_file_system_that_fails_is_logged(
        self, timer: SecondOrStepTimerWithTideSetting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(path: str) -> bool:
            raise OSError("name node is away")

        monkeypatch.setattr("monolith.hooks.marker_files.exists", fail)
        assert not at_step(SyncTrainingForceDumpHook("hdfs://x", timer, clock=clock_at(18)), 100).stop_requested
        assert "name node is away" in caplog.text
        assert not timer.enabled


class TestSaverControl:
    def test_online_lets_the_timer_run(self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting) -> None:
        hook = SyncTrainingSaverControlHook(str(tmp_path), timer)

        def is_enabled_at(step: int) -> bool:
            at_step(hook, step)
            return timer.enabled

        assert not is_enabled_at(100)
        (tmp_path / "ONLINE").touch()
        assert not is_enabled_at(150)
        assert is_enabled_at(200)
        (tmp_path / "ONLINE").unlink()
        assert not is_enabled_at(300)

    def test_on_a_remote_file_system(self, timer: SecondOrStepTimerWithTideSetting) -> None:
        memory = fsspec.filesystem("memory")
        try:
            memory.pipe_file("/models/ONLINE", b"")
            timer.disable()
            at_step(SyncTrainingSaverControlHook("memory://models", timer), 100)
            assert timer.enabled
        finally:
            memory.store.clear()


class TestReqTime:
    def session(self, *times: object) -> FakeSession:
        session = FakeSession(global_step=1000)
        for time in times:
            session.collections.add("req_time", time)
        return session

    @pytest.mark.parametrize(
        ("times", "limit", "stops"),
        [
            ([torch.tensor([5, 99])], "100", False),
            ([torch.tensor([5, 100])], "100\n", True),
            ([torch.tensor([[200], [3]])], "100", True),
            ([torch.tensor([500]), torch.tensor([7])], "100", False),
            ([100], "100", True),
            ([torch.tensor([], dtype=torch.int64)], "100", False),
            ([], "100", False),
            ([torch.tensor([5])], None, False),
            ([torch.tensor([2**62])], str(2**62), True),
        ],
    )
    def test_it_stops_at_the_limit(
        self,
        tmp_path: Path,
        timer: SecondOrStepTimerWithTideSetting,
        times: list[object],
        limit: str | None,
        stops: bool,
    ) -> None:
        if limit is not None:
            (tmp_path / "limit_req_time").write_text(limit)
        session = self.session(*times)
        ReqTimeControlDumpHook(str(tmp_path), timer).after_run(session.context())
        assert session.stop_requested == stops
        assert timer.should_trigger_for_step(1000) == stops

    def test_it_saves_also_where_the_timer_is_off(
        self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting
    ) -> None:
        """As `SyncTrainingForceDumpHook` leaves it by day."""
        (tmp_path / "limit_req_time").write_text("100")
        timer.disable()
        hook = ReqTimeControlDumpHook(str(tmp_path), timer)
        enabled = []
        for time in (99, 100):
            hook.after_run(self.session(time).context())
            enabled.append(timer.enabled)
        assert enabled == [False, True]
        assert timer.should_trigger_for_step(1000)

    @pytest.mark.parametrize("text", ["", "soon", "12.5", "-1"])
    def test_a_limit_that_is_no_time_is_logged(
        self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "limit_req_time").write_text(text)
        session = self.session(torch.tensor([5]))
        ReqTimeControlDumpHook(str(tmp_path), timer).after_run(session.context())
        assert not session.stop_requested
        assert f"limit_req_time: expected a Unix time in seconds, got {text!r}" in caplog.text

    def test_it_looks_every_thousand_steps(self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting) -> None:
        (tmp_path / "limit_req_time").write_text("1")
        hook = ReqTimeControlDumpHook(str(tmp_path), timer, req_time=lambda _: 5)
        assert not at_step(hook, 999).stop_requested
        assert at_step(hook, 2000).stop_requested
        assert not at_step(ReqTimeControlDumpHook(str(tmp_path), timer), 1000).stop_requested  # it knows no time
        with pytest.raises(ValueError, match="step_interval must be >= 1, got 0"):
            ReqTimeControlDumpHook(str(tmp_path), timer, step_interval=0)

    def test_the_interval_is_the_third_argument(self, tmp_path: Path, timer: SecondOrStepTimerWithTideSetting) -> None:
        (tmp_path / "limit_req_time").write_text("1")
        hook = ReqTimeControlDumpHook(str(tmp_path), timer, 7, req_time=lambda _: 5)
        assert [step for step in range(1, 22) if at_step(hook, step).stop_requested] == [7, 14, 21]


def test_hooks_of_marker_files_take_the_interval_as_the_third_argument(
    tmp_path: Path, timer: SecondOrStepTimerWithTideSetting
) -> None:
    for step in (7, 8, 14):
        (tmp_path / f"stop_{step}").touch()
    dump = SyncTrainingForceDumpHook(str(tmp_path), timer, 7, clock=clock_at(3))
    assert [step for step in range(1, 15) if at_step(dump, step).stop_requested] == [7, 14]
    timer.enable()
    control = SyncTrainingSaverControlHook(str(tmp_path), timer, 7)
    at_step(control, 6)
    assert timer.enabled
    at_step(control, 7)
    assert not timer.enabled


def test_other_ranks_do_what_rank_zero_saw(
    tmp_path: Path, timer: SecondOrStepTimerWithTideSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 of 2: it looks at nothing, and obeys what comes by the broadcast."""
    seen_by_rank_zero = torch.tensor([1, 1, 0])
    monkeypatch.setattr(collective, "rank", lambda: 1)
    monkeypatch.setattr(collective, "broadcast", lambda tensor: seen_by_rank_zero)
    monkeypatch.setattr("monolith.hooks.marker_files.exists", lambda _: pytest.fail("only rank 0 looks"))
    assert at_step(SyncTrainingForceDumpHook(str(tmp_path), timer), 100).stop_requested
    seen_by_rank_zero = torch.tensor([0])
    at_step(SyncTrainingSaverControlHook(str(tmp_path), timer), 100)
    assert not timer.enabled
    seen_by_rank_zero = torch.tensor([50, 50])
    assert at_step(ReqTimeControlDumpHook(str(tmp_path), timer), 1000).stop_requested


class TestBarrierSaverListener:
    def test_it_waits_after_the_save(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[Tensor] = []
        monkeypatch.setattr(collective, "broadcast", calls.append)
        listener, session = SyncTrainingBarrierSaverListener(), FakeSession()
        listener.begin()
        listener.before_save(session, 7)
        assert calls == []
        listener.after_save(session, 7)
        listener.end(session, 7)
        assert [int(tensor) for tensor in calls] == [7]

    def test_alone_it_does_not_wait(self) -> None:
        SyncTrainingBarrierSaverListener().after_save(FakeSession(), 7)

    def test_an_unreachable_rank_is_logged(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(tensor: Tensor) -> Tensor:
            raise RuntimeError("connection closed by peer")

        monkeypatch.setattr(collective, "broadcast", fail)
        SyncTrainingBarrierSaverListener().after_save(FakeSession(), 7)
        assert "step 7: not all ranks have saved: connection closed by peer" in caplog.text
