"""The local launcher, with small programs that stand for roles: who is started, who ends, what is seen of it."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from monolith.launch import LaunchPlan, LocalLauncher, RestartConfig
from monolith.launch.supervision import ShutdownConfig
from monolith.train import RunnerConfig

STAND_IN = Path(__file__).with_name("stand_in.py")
SOON = RestartConfig(first_pause_seconds=0.01, longest_pause_seconds=0.02)
ENDS_HANGS_SECONDS = 60.0


class Job:
    """A job of stand-ins, described by the words of its roles."""

    def __init__(self, folder: Path, roles: dict[str, str], **plan: Any) -> None:
        self.folder = folder
        for name, words in roles.items():
            (folder / name).write_text(words, encoding="utf-8")
        num_ps = sum(name.startswith("ps") for name in roles)
        options = RunnerConfig(num_ps=num_ps, num_workers=len(roles) - num_ps, model_dir="/nowhere")
        given = {"program": (sys.executable, str(STAND_IN)), "restarts": SOON, **plan}
        self.plan = LaunchPlan(task=str(folder), options=options, **given)
        self.log = io.StringIO()
        # Only roles that do not listen are killed; a busy machine must not kill one that is about to stop.
        kill_seconds = 0.3 if "deaf" in roles.values() else ENDS_HANGS_SECONDS
        patience = ShutdownConfig(server_seconds=0.0, kill_seconds=kill_seconds)
        self.launcher = LocalLauncher(self.plan, file=self.log, patience=patience)

    def run(self) -> int:
        return self.launcher.run()

    @property
    def events(self) -> list[str]:
        file = self.folder / "events"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def wait_for(self, *parts: str) -> None:
        """Until every one of these has happened."""
        until = time.monotonic() + ENDS_HANGS_SECONDS
        while not all(any(part in event for event in self.events) for part in parts):
            assert time.monotonic() < until, f"{parts} did not happen: {self.events}"
            time.sleep(0.01)

    def signalled(self, *steps: tuple[tuple[str, ...], signal.Signals]) -> int:
        """Runs, and sends this process signals: each when its events have happened."""

        def send() -> None:
            for parts, number in steps:
                self.wait_for(*parts)
                os.kill(os.getpid(), number)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            return self.run()
        finally:
            sender.join()


def test_a_job_finishes_with_its_workers_and_then_terminates_its_servers(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "ps-1": "done", "worker-0": "then-done", "worker-1": "done"})
    assert job.run() == 0
    assert "ps 0 stops SIGTERM" in job.events
    assert sorted(event for event in job.events if "starts" in event) == [
        "ps 0 starts as stay",
        "ps 1 starts as done",
        "worker 0 starts as then-done",
        "worker 1 starts as done",
    ]
    assert job.launcher.restarts == 0


def test_every_line_is_prefixed_with_its_role(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "then-done", "worker-1": "done"})
    job.run()
    lines = job.log.getvalue().splitlines()
    assert "[ps 0]     stay says hello" in lines
    assert {"[worker 0] then-done says hello", "[worker 1] done says hello"} < set(lines)


def test_one_line_shows_how_far_the_job_is(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "done", "worker-0": "done", "worker-1": "done"})
    job.run()
    last = job.log.getvalue().splitlines()[-1]
    assert re.match(r"20/100 steps \(20 %\), ", last), last
    assert "workers 0/2, servers 0/1, restarts 0" in last or "servers 1/1" in last
    assert job.launcher.result in ({"index": 0}, {"index": 1})


def test_roles_that_die_or_ask_for_it_are_started_again(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "die stay", "worker-0": "again die done"})
    assert job.run() == 0
    assert job.launcher.restarts == 3
    log = job.log.getvalue()
    assert "[job]      ps 0 was ended by SIGKILL; it is started again" in log
    assert "worker 0 requested a restart (exit code 75); it is started again\n" in log
    assert "worker 0 was ended by SIGKILL; it is started again in 0.01 s" in log


def test_a_role_that_dies_again_and_again_ends_the_job(tmp_path: Path) -> None:
    policy = RestartConfig(limit=2, first_pause_seconds=0.01)
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "die", "worker-1": "stay"}, restarts=policy)
    assert job.run() == 128 + 9
    assert job.events.count("worker 0 starts as die") == 3
    assert "worker 0 was ended by SIGKILL, 3 times in a row: the job ends" in job.log.getvalue()


def test_a_role_that_fails_ends_the_job_with_its_code_and_the_others_save(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "stay", "worker-1": "then-fail"})
    assert job.run() == 3
    assert [event for event in job.events if "stops" in event] == ["worker 0 stops SIGINT", "ps 0 stops SIGTERM"]
    assert "worker 1 failed (exit code 3): the job ends" in job.log.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_workers_save_and_then_ends_servers(tmp_path: Path, number: signal.Signals) -> None:
    job, before = Job(tmp_path, {"ps-0": "stay", "worker-0": "stay", "worker-1": "stay"}), signal.default_int_handler
    outside = signal.signal(number, before)  # under nohup one of them is ignored
    try:
        assert job.signalled((("worker 0 stays", "worker 1 stays", "ps 0 stays"), number)) == 130
        assert signal.getsignal(number) is before, "handlers are given back"
    finally:
        signal.signal(number, outside)
    assert [event for event in job.events if "stops" in event][-1] == "ps 0 stops SIGTERM", "after the workers"
    assert {"worker 0 stops SIGINT", "worker 1 stops SIGINT"} < set(job.events)
    assert f"got {number.name}" in job.log.getvalue()


def test_a_process_without_signal_handlers_yet_prints_no_traceback(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "mute"})
    assert job.signalled((("worker 0 stays", "ps 0 stays"), signal.SIGINT)) == 130
    assert "worker 0 stops SIGTERM" in job.events


def test_a_signal_that_was_ignored_before_stays_so(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        job = Job(tmp_path, {"ps-0": "stay", "worker-0": "stay"})
        steps = ((("worker 0 stays", "ps 0 stays"), signal.SIGHUP), ((), signal.SIGINT))
        assert job.signalled(*steps) == 130
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "SIGHUP" not in job.log.getvalue()


def test_a_second_signal_kills(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "deaf", "worker-0": "deaf", "worker-1": "stay"})
    steps = (
        (("worker 0 stays", "worker 1 stays", "ps 0 stays"), signal.SIGINT),
        (("worker 1 stops",), signal.SIGINT),
    )
    assert job.signalled(*steps) == 130
    assert "killing all processes" in job.log.getvalue()


def test_a_server_that_does_not_end_is_killed(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "deaf", "worker-0": "then-done"})
    assert job.run() == 0
    assert "killing ps 0: still there after the time to end" in job.log.getvalue()


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(*pids: int) -> None:
    """What was killed is gone once its new parent has looked after it."""
    until = time.monotonic() + ENDS_HANGS_SECONDS
    while any(is_there(pid) for pid in pids):
        assert time.monotonic() < until, "a process outlives its launcher"
        time.sleep(0.01)


def test_what_a_role_started_ends_with_it(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "parent"})
    assert job.signalled((("worker 0 child", "worker 0 stays"), signal.SIGINT)) == 130
    (child,) = [int(event.split()[-1]) for event in job.events if "child" in event]
    wait_until_gone(child)


@pytest.mark.slow
def test_roles_do_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "deaf", "worker-0": "deaf"})
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from test_local import Job\n"
        "Job(Path(sys.argv[2]), {'ps-0': 'deaf', 'worker-0': 'deaf'}).run()"
    )
    command = [sys.executable, "-c", program, str(STAND_IN.parent), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        job.wait_for("ps 0 stays", "worker 0 stays")
        launcher.kill()
    pids = [int(event.split()[-1]) for event in job.events if "stays" in event]
    wait_until_gone(*pids)


def test_a_missing_command_fails_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "stay"}, program=("/nowhere/monolith",))
    assert job.run() == 127
    assert "cannot start /nowhere/monolith: No such file or directory" in job.log.getvalue()


class GoneTerminal(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_closed_terminal_does_not_stop_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "done"})
    assert LocalLauncher(job.plan, file=GoneTerminal(), patience=ShutdownConfig(server_seconds=0.0)).run() == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_unless_they_are_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for wanted in (True, False):
        if not wanted:
            monkeypatch.setenv("NO_COLOR", "1")
        (tmp_path / str(wanted)).mkdir()
        job, terminal = Job(tmp_path / str(wanted), {"ps-0": "stay", "worker-0": "then-done"}), Terminal()
        LocalLauncher(job.plan, file=terminal, patience=ShutdownConfig(server_seconds=0.0)).run()
        assert ("\x1b[33m[ps 0]    \x1b[0m stay says hello" in terminal.getvalue()) is wanted
        assert "stay says hello" in terminal.getvalue()


def test_it_runs_in_the_main_thread_where_signals_come(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "done"})
    errors: list[BaseException] = []

    def run() -> None:
        try:
            job.run()
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
    assert job.events == []
