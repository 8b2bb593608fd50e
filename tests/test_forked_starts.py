"""Forks that stand for started Python programs behave as those do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked_starts import ForkingProcess

SHOWS = "import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), os.environ.get('GIVEN'), os.getppid()]))"


@pytest.fixture(autouse=True)
def forked_starts(forking: ForkingProcess) -> Iterator[None]:
    with forking.forked_starts(depth=1):
        yield


def test_it_is_a_fork_and_a_child() -> None:
    program = "import os, sys; print('torch._dynamo' in sys.modules, os.getppid(), os.getpid())"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0].split() == ["True", str(os.getpid()), str(process.pid)]
    assert process.returncode == 0


def test_arguments_folder_and_environment_are_those_given(tmp_path: Path) -> None:
    (tmp_path / "shows.py").write_text(SHOWS)
    for program, first in (
        (["-c", SHOWS], "-c"),
        (["shows.py"], "shows.py"),
        (["-m", "shows"], str(tmp_path / "shows.py")),
    ):
        done = subprocess.run(
            [sys.executable, *program, "one", "two"],
            cwd=tmp_path,
            env={"GIVEN": "yes"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f'[["{first}", "one", "two"], "{tmp_path}", "yes", {os.getpid()}]\n'
        assert done.stderr == ""


def test_input_and_further_descriptors_are_passed() -> None:
    ours, theirs = os.pipe()
    program = f"import os, sys; os.write({theirs}, sys.stdin.read().upper().encode())"
    subprocess.run([sys.executable, "-c", program], input="hello", text=True, check=True, pass_fds=[theirs])
    os.close(theirs)
    with os.fdopen(ours) as said:
        assert said.read() == "HELLO"


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("1 / 0", 1, 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nZeroDivisionError'),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "Traceback"),
        ("import atexit; atexit.register(print, 'at the end', end='')", 0, ""),
    ],
)
def test_it_ends_as_an_interpreter_does(program: str, status: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stderr.startswith(said)
    assert bool(done.stderr) == bool(said)
    assert done.stdout == ("at the end" if "atexit" in program else "")


def test_a_signal_of_its_parent_ends_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "print('there', flush=True); input()"], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(sys.executable.encode() + b"\0-c\0print")
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_what_a_fork_starts_is_a_fork_too() -> None:
    inner = "import os, sys; print('torch._dynamo' in sys.modules, os.getppid())"
    outer = f"""
import os, subprocess, sys
print(os.getpid(), flush=True)
subprocess.run([sys.executable, "-c", {inner!r}])
"""
    done = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True, check=True)
    number, line = done.stdout.splitlines()
    assert line == f"True {number}"


@pytest.mark.parametrize("options", [["-I"], ["-X", "dev"], ["-S"]])
def test_options_of_the_interpreter_start_one(options: list[str]) -> None:
    program = "import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_missing_folder_raises_the_error_of_a_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.run([sys.executable, "-c", ""], cwd=tmp_path / "gone", check=True)
