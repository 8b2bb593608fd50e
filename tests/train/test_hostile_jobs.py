"""What `distributed_train` does with a full disk, with the model directory of another run, and with strangers."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from monolith.checkpoint import get_checkpoint_state
from monolith.checkpoint import saver as saver_module
from monolith.checkpoint.writing import write_checkpoint
from monolith.errors import OpError, ResourceExhaustedError
from monolith.hook import Hook
from monolith.testing import ExampleTask
from monolith.testing.distributed_binary import FeatureTask
from train.job_threads import ThreadJob

if TYPE_CHECKING:
    from monolith.checkpoint.cut import StateCut
    from monolith.hook import StepContext
    from monolith.train import Params

GARBAGE = (
    b"\x00" * 64,
    b"\xff" * 4096,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x07" * 999,
)
LISTENS = "0A"


def params(num_batches: int = 20) -> Params:
    made = ExampleTask.params()
    made.num_batches = num_batches
    return made


def last_step(model_dir: Path) -> int:
    state = get_checkpoint_state(str(model_dir))
    assert state is not None
    return int(state.model_checkpoint_path.rpartition("-")[2])


def own_ports() -> set[int]:
    """On which this process listens."""
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    own = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", str(link)))}
    tables = [Path(f"/proc/self/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == LISTENS and words[9] in own}


def test_a_job_whose_disk_is_full_ends_with_what_it_had_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = list[int]()

    def limited(folder: Any, cut: StateCut, *arguments: Any, **more: Any) -> Any:
        saves.append(1)
        if len(saves) > 1:
            cut.release()
            raise ResourceExhaustedError("no space left on the disk")
        return write_checkpoint(folder, cut, *arguments, **more)

    monkeypatch.setattr(saver_module, "write_checkpoint", limited)
    options = {"save_checkpoints_steps": 10}
    job = ThreadJob(tmp_path, num_ps=2, params=lambda: params(10_000), options=options)
    job.start_all()
    with pytest.raises(ResourceExhaustedError, match="no space left"):
        job.result("worker", 0)
    for role, index in (("ps", 0), ("ps", 1)):
        assert job.result(role, index) is None  # they were told to stop
    assert len(saves) >= 3  # the second save was tried twice
    assert 10 <= last_step(tmp_path) < 20


def test_a_model_directory_of_another_model_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    ThreadJob(tmp_path, params=lambda: params(5)).run()
    before = sorted(path.name for path in tmp_path.rglob("*.manifest"))
    job = ThreadJob(tmp_path, params=FeatureTask.params)
    job.start_all()
    with pytest.raises(OpError, match=r"the model is not the one that was saved: 'top\.bias' was removed"):
        job.result("worker", 0)
    assert job.result("ps", 0) is None
    assert sorted(path.name for path in tmp_path.rglob("*.manifest")) == before
    assert last_step(tmp_path) == 5


class Held(Hook):
    """Stops a worker in its first step until it may go on."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def after_run(self, context: StepContext) -> None:
        self.begun.set()
        assert self.may_go_on.wait(120)


def test_garbage_on_every_port_and_idle_foreign_connections_change_nothing(tmp_path: Path) -> None:
    before = own_ports()
    hooks = [Held(), Held()]
    job = ThreadJob(tmp_path, num_ps=2, num_workers=2, params=params)
    for index, hook in enumerate(hooks):
        job.start("worker", index, hooks=[hook])
    for index in range(2):
        job.start("ps", index)
    for hook in hooks:
        assert hook.begun.wait(120)
    ports = own_ports() - before
    assert len(ports) >= 2 * 2 + 2  # two of each server, and one of each worker
    with ExitStack() as strangers:
        for port in ports:
            for text in GARBAGE:
                stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                stranger.sendall(text)  # and says nothing more
        for hook in hooks:
            hook.may_go_on.set()
        for role, index in job.roles:
            job.result(role, index)
    assert last_step(tmp_path) == 20
