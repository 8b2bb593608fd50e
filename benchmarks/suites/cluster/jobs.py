"""Jobs of many processes under the local launcher, to be measured: started, stopped for a turn, killed in parts."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.suites.cluster.task import JobDeepFm, step_times
from benchmarks.suites.processes import child_environment
from monolith.cli._bench.measurement import RowSkippedError
from monolith.launch.process import tied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.cli._bench.setting import Setting

__all__ = ["Job", "import_seconds", "running_job"]

_POLL_SECONDS = 0.005
_HANG_SECONDS = 300.0
_WARM_UP_STEPS = 3


class Job:
    """A running job.

    Args:
        launcher: Its first process.
        folder: Folder of its model and its times.
        num_workers: Number of workers.
    """

    def __init__(self, launcher: subprocess.Popen[bytes], folder: Path, num_workers: int) -> None:
        self._launcher = launcher
        self._folder = folder
        self._num_workers = num_workers
        self.begun = time.monotonic()

    @property
    def model_dir(self) -> Path:
        """Model directory."""
        return self._folder / "model"

    def times(self, worker: int) -> list[float]:
        """Returns when the steps of a worker started."""
        return step_times(self._folder, worker)

    def pid(self, kind: str, index: int) -> int:
        """Returns the process id of a role."""
        for pid in self._pids():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
            if kind in words and words[-2:] == ["--index", str(index)]:
                return pid
        raise RuntimeError(f"the job has no process {kind} {index}")

    def wait(self, is_so: Callable[[], bool]) -> float:
        """Waits until it is so; the time then."""
        end = time.monotonic() + _HANG_SECONDS
        while not is_so():
            if self._launcher.poll() is not None or time.monotonic() > end:
                log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"the job ended or hangs; end of its log: {log[-2000:]}")
            time.sleep(_POLL_SECONDS)
        return time.monotonic()

    def wait_for_steps(self, count: int) -> None:
        """Waits until every worker has started `count` steps in total."""
        self.wait(lambda: all(len(self.times(worker)) >= count for worker in range(self._num_workers)))

    def turn(self, seconds: float) -> float:
        """Lets it run for about so long, some steps at least; steps per second of all workers together."""
        self.resume()
        begun = time.monotonic()
        self.wait(lambda: len(self._begins_since(begun)) > _WARM_UP_STEPS)
        begin = self._begins_since(begun)[_WARM_UP_STEPS]
        self.wait(lambda: len(self._begins_since(begin)) > 1 and self._begins_since(begin)[-1] - begin >= seconds)
        begins = self._begins_since(begin)
        self.pause()
        return (len(begins) - 1) / (begins[-1] - begins[0])

    def pause(self) -> None:
        """Pauses all of its processes."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes the processes."""
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _begins_since(self, begin: float) -> list[float]:
        return sorted(each for worker in range(self._num_workers) for each in self.times(worker) if each >= begin)

    def _pids(self) -> list[int]:
        path = Path(f"/proc/{self._launcher.pid}/task/{self._launcher.pid}/children")
        return [int(each) for each in path.read_text(encoding="ascii").split()]


@contextmanager
def running_job(
    setting: Setting, folder: Path, *, num_ps: int, num_workers: int, new_ids: bool = False, **options: Any
) -> Iterator[Job]:
    """Runs a job with these options; its processes end with the block.

    Raises:
        RowSkippedError: grpcio is not installed, or processes cannot be listed.
    """
    if importlib.util.find_spec("grpc") is None:
        raise RowSkippedError("servers are controlled over gRPC; pip install 'monolith-torch[ps]'")
    if not sys.platform.startswith("linux"):
        raise RowSkippedError("processes of a job are found by /proc, which only Linux has")
    temporary = folder / "temporary"  # of processes that are killed, and leave what they have there
    temporary.mkdir(parents=True)
    params = {"setting": setting.to_json(), "folder": str(folder), "new_ids": new_ids}
    given = {
        "model_dir": folder / "model",
        "num_ps": num_ps,
        "num_workers": num_workers,
        "embedding_prefetch_capacity": 1,
        "enable_embedding_postpush": "true",
        "params_override": json.dumps(params),
        **options,
    }
    task = f"{JobDeepFm.__module__}:{JobDeepFm.__name__}"
    command = [sys.executable, "-m", "monolith", "train", task, "--launcher", "local"]
    command += [str(part) for name, value in given.items() for part in (f"--{name}", value)]
    with (folder / "log").open("wb") as log:
        # The interpreter that runs us, on a command of this package.
        env = {**child_environment(), "TMPDIR": str(temporary)}
        launcher = subprocess.Popen(tied(command), stdout=log, stderr=log, env=env)
        job = Job(launcher, folder, num_workers)
        try:
            yield job
        finally:
            job.resume()
            launcher.kill()  # its processes go with it
            launcher.wait()


def import_seconds() -> float:
    """Returns the CPU time of a process that imports what a role needs, and exits."""
    program = (
        "import monolith.cli._roles, benchmarks.suites.cluster.task, torch; torch.optim.SGD([torch.zeros(1)], lr=1.0)"
    )
    # The interpreter that runs us, on a line of this module.
    child = subprocess.Popen([sys.executable, "-c", program], env=child_environment())
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"a process that only imports ended with status {child.returncode}")
    return usage.ru_utime + usage.ru_stime
