"""Servers and their chief publish what a job trains; followers have it bit for bit, also after other servers came."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pytest

from checkpoint.zygote import Zygote
from monolith.deltalog import DeltaLog
from monolith.online import Follower
from monolith.tables import LocalStore
from monolith.testing import ExampleTask
from monolith.train import Session, Trainer, TrainerConfig
from train.job_threads import ThreadJob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from monolith.train import Params


def params(num_batches: int = 20) -> Params:
    made = ExampleTask.params()
    made.num_batches = num_batches
    return made


def serving_rows(store: Any) -> list[tuple[object, ...]]:
    """Everything that serving sees of a store: keys, times and compressed bytes."""
    with store.cut() as cut:
        found = [
            (block.table, block.bucket, int(key), int(time), bytes(row))
            for block in cut.blocks(range(1024), state=False)
            if block.kind.name == "SERVING"
            for key, time, row in zip(block.keys, block.times, block.payload, strict=True)
        ]
    return sorted(found)


class Followed:
    """A follower of the log of a job, with tables of the job's model."""

    def __init__(self, log: str) -> None:
        with Session(ExampleTask()) as session:
            self.name, trained = next(iter(session.state.stores.items()))
            self.weights = set(dict(session.state.model.named_parameters()))  # type: ignore[union-attr]
            assert isinstance(trained, LocalStore)
            self.store = LocalStore({each.name: replace(each, serving=True) for each in trained.native.configs})
        self.dense: dict[str, Tensor] = {}
        self.follower = Follower({self.name: self.store}, log, on_dense=self._take)
        self.versions: list[dict[str, int]] = []

    def _take(self, found: Mapping[str, Tensor]) -> None:
        self.dense = dict(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.follower.close()
        self.store.close()

    def catch_up(self) -> list[tuple[object, ...]]:
        self.follower.catch_up()
        self.versions.append(self.follower.version)
        return serving_rows(self.store)


def saved_rows(trainer: Trainer) -> list[tuple[object, ...]]:
    """Those of the last checkpoint."""
    trainer.evaluate(steps=1)
    assert trainer.state is not None
    return serving_rows(next(iter(trainer.state.stores.values())))


@pytest.fixture
def options() -> dict[str, Any]:
    return {"enable_realtime_training": True, "delta_log_interval_secs": 0.1, "force_shutdown_ps": True}


def test_followers_of_a_job_have_its_rows_also_with_another_number_of_servers(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    log = str(tmp_path / "model" / "delta_log")
    early = Followed(log)
    for num_ps, num_batches in ((2, 10), (3, 15), (2, 20)):
        made = partial(params, num_batches)
        job = ThreadJob(tmp_path / "model", num_ps=num_ps, num_workers=2, params=made, options=options)
        trainers = job.run()
        expected = saved_rows(trainers[0])
        assert len(expected) > 10
        assert early.catch_up() == expected
        with Followed(log) as late:
            assert late.catch_up() == expected
        assert {base.kind for base in DeltaLog(log).bases()} == {"checkpoint"}, "it says where the log was"
    name = early.name
    assert set(DeltaLog(log).parts()) == {
        "dense",
        *(f"{name}.{buckets}" for buckets in ("0000-0512", "0512-1024", "0000-0342", "0342-0683", "0683-1024")),
    }
    for before, after in zip(early.versions, early.versions[1:], strict=False):
        assert all(after[part] >= number for part, number in before.items())
    assert early.dense.keys() == early.weights
    early.__exit__()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def test_two_followers_have_the_rows_of_two_servers_of_which_one_was_killed(tmp_path: Path) -> None:
    """Two servers and two workers, each a process; server 1 is killed while workers train, and comes back."""
    log = DeltaLog(tmp_path / "model" / "delta_log")
    with Zygote() as zygote, Followed(log.place) as first, Followed(log.place) as second:

        def start(role: str, index: int) -> int:
            code = "from online.job_process import main; main(*arguments)"
            return zygote.start(code, str(tmp_path), role, str(index), beside=True)

        def last(part: str) -> int:
            found = log.extent(part)
            return -1 if found is None else found.next - 1

        processes = {(role, index): start(role, index) for role in ("worker", "ps") for index in (0, 1)}
        parts = [f"{first.name}.0000-0512", f"{first.name}.0512-1024"]
        wait_until(lambda: all(last(part) >= 2 for part in parts))
        first.catch_up()
        assert zygote.end(processes["ps", 1]) == -signal.SIGKILL
        written = last(parts[1])
        generation = getattr(log.extent(parts[1]), "generation", 0)
        processes["ps", 1] = start("ps", 1)
        (tmp_path / "go").touch()
        ended = {told["name"]: told["status"] for told in (zygote.line() for _ in processes)}
        logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert set(ended.values()) == {"ended"}, logs
        for pid in processes.values():
            zygote.end(pid)
        trainer = Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path / "model")))
        expected = saved_rows(trainer)
        assert len(expected) > 100
        assert first.catch_up() == expected
        assert second.catch_up() == expected
        assert last(parts[1]) > written
        assert getattr(log.extent(parts[1]), "generation", 0) > generation  # of the server that came back
        assert first.follower.version == second.follower.version == log.position()
