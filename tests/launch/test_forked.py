"""A role that is a fork of its launcher: it has what a program would have that was started, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("forking_program.py")
ENDS_HANGS_SECONDS = 60.0


def run(what: str) -> list[str]:
    """The lines of a program that forks."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), what], capture_output=True, text=True, check=True, timeout=ENDS_HANGS_SECONDS
    )
    assert done.stderr == ""
    before, *lines = done.stdout.splitlines()
    assert before == "said before the fork"  # once: the fork has no copy of what was not written yet
    return lines


def test_a_fork_is_like_a_program_that_was_started() -> None:
    told, exit_code = run("facts")
    found = json.loads(told)
    assert exit_code == "7"
    assert found["arguments"] == ["worker", "a:B", "--more", str(found["kept"])]
    assert found["argv"] == ["monolith", *found["arguments"]]
    assert found["is_leader"]
    assert found["variable"] == "yes"
    assert found["input"] == ""
    assert found["descriptors"] == [0, 1, 2, found["kept"]]


def test_lists_of_processes_show_which_role_it_is() -> None:
    found = json.loads(run("facts")[0])
    assert found["command_line"] == ["monolith", *found["arguments"]]


def test_signals_are_those_of_a_new_program_and_none_is_held_back() -> None:
    found = json.loads(run("facts")[0])
    assert found["interrupt"]
    assert found["terminate"]
    assert found["hang_up"]  # what a launcher was started to ignore, as under nohup
    assert found["blocked"] == []
    assert found["wakeup"] == -1


def test_the_end_of_a_fork_is_reported_as_that_of_a_program() -> None:
    assert run("exit") == ["3"]
    assert run("die") == [str(-signal.SIGKILL)]
    *trace, exit_code = run("raise")
    assert exit_code == "1"
    assert trace[-1] == "KeyError: 'of the body'"


def test_threads_and_what_is_left_for_the_end_are_done() -> None:
    assert run("work") == ["thread", "at the end", "0"]


def test_a_fork_does_not_outlive_its_launcher() -> None:
    with subprocess.Popen([sys.executable, str(PROGRAM), "outlive"], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        fork = int(launcher.stdout.readline())
        os.kill(fork, 0)
        launcher.kill()
    end = time.monotonic() + ENDS_HANGS_SECONDS
    while Path(f"/proc/{fork}/cmdline").exists() and Path(f"/proc/{fork}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.01)
