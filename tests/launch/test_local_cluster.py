"""A job of real processes on this machine: through deaths, stopped with a save, and gone on with to its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest

TASK = "monolith.testing:ExampleTask"
ENDS_HANGS_SECONDS = 280.0
ENDLESS = ["--params_override", '{"num_batches": 1000000}', "--save_checkpoints_steps", "40"]


def steps_of(model_dir: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest"))


def processes_of(launcher: int) -> dict[str, int]:
    """The roles that a launcher has now, by name."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
            parent = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == launcher and "--index" in words and "monolith" in words:
            found[f"{words[words.index('monolith') + 1]} {words[-1]}"] = int(folder.name)
    return found


class Launched:
    """``monolith train`` as a process, whose job does not end by itself."""

    def __init__(self, model_dir: Path, *options: str) -> None:
        self.model_dir = model_dir
        self.log = model_dir.with_suffix(".log")
        command = [sys.executable, "-m", "monolith", "train", TASK, "--model_dir", str(model_dir), *ENDLESS, *options]
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file, stdout=subprocess.PIPE, text=True)

    def wait_for_step(self, step: int) -> int:
        """Until a checkpoint of this step or a later one is there; its step."""
        until = time.monotonic() + ENDS_HANGS_SECONDS
        while not (found := [each for each in steps_of(self.model_dir) if each >= step]):
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
            assert time.monotonic() < until, self.log.read_text(encoding="utf-8")
            time.sleep(0.05)
        return found[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(ENDS_HANGS_SECONDS * 2)
@pytest.mark.usefixtures("forked_starts")
def test_a_job_survives_crashes_stops_with_a_save_and_resumes(tmp_path: Path) -> None:
    job = ["--num_ps", "2", "--num_workers", "2"]
    with Launched(tmp_path / "m", *job) as launched:
        step = launched.wait_for_step(1)
        roles = processes_of(launched.process.pid)
        assert set(roles) == {"ps 0", "ps 1", "worker 0", "worker 1"}
        for pid in roles.values():  # forks of the launcher: a program of its own would show its interpreter
            assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"monolith\0")
        os.kill(roles["ps 0"], signal.SIGTERM)
        os.kill(roles["ps 1"], signal.SIGKILL)
        os.kill(roles["worker 1"], signal.SIGKILL)
        launched.wait_for_step(step + 1)
        launched.process.send_signal(signal.SIGINT)
        assert launched.process.wait(ENDS_HANGS_SECONDS) == 130
        assert processes_of(launched.process.pid) == {}
        log = launched.log.read_text(encoding="utf-8")
    assert "[job]      ps 0 was stopped (exit code 130); it is started again" in log
    assert "[job]      ps 1 was ended by SIGKILL; it is started again" in log
    assert "[job]      worker 1 was ended by SIGKILL; it is started again" in log
    saved = steps_of(tmp_path / "m")[-1]
    assert re.search(rf"step {saved:,} with [\d,]+ rows is saved in {tmp_path}/m", log)
    assert f"resume with: monolith train {TASK}" in log
    more = ["--max_steps", str(saved + 7), *job, *ENDLESS[:2], "--json"]
    command = [sys.executable, "-m", "monolith", "train", TASK, "--model_dir", str(tmp_path / "m"), *more]
    told = subprocess.run(command, check=True, capture_output=True, timeout=ENDS_HANGS_SECONDS).stdout
    assert json.loads(told)["global_step"] >= saved + 7
