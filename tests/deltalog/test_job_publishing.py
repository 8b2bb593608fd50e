"""Servers and their chief publish what a job trains; followers have it bit for bit, also after other servers came."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from checkpoint.zygote import Zygote
from deltalog.followed import Followed, saved_rows
from monolith.deltalog import DeltaLog
from monolith.testing import ExampleTask
from monolith.train import Trainer, TrainerConfig
from train.job_threads import ThreadJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from monolith.train import Params


def params(num_batches: int = 20) -> Params:
    made = ExampleTask.params()
    made.num_batches = num_batches
    return made


@pytest.fixture
def options() -> dict[str, Any]:
    return {"enable_realtime_training": True, "delta_log_interval_secs": 0.1, "force_shutdown_ps": True}


@pytest.mark.slow
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
    staleness = early.follower.staleness
    assert staleness is not None, "servers tell of the events behind their rows"
    assert 0 <= staleness.p50 <= staleness.p99
    early.__exit__()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_two_followers_have_the_rows_of_two_servers_of_which_one_was_killed(tmp_path: Path) -> None:
    """Two servers and two workers, each a process; server 1 is killed while workers train, and comes back."""
    log = DeltaLog(tmp_path / "model" / "delta_log")
    with Zygote() as zygote, Followed(log.place) as first, Followed(log.place) as second:

        def start(role: str, index: int) -> int:
            code = "from deltalog.job_process import main; main(*arguments)"
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
