"""The hook that has rows pushed while a session trains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from failing_once import FailingOnce
from hooks.sessions import FakeSession
from monolith.checkpoint import TrainState
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import OpError, UnavailableError
from monolith.hooks import DeltaPublishHook
from monolith.hooks.parameter_sync import ParameterSyncHook, PushThread
from monolith.nn import Embeddings, Slot
from monolith.serving.push.client import DiscoverySyncBackend
from monolith.serving.shards.replicas import shard_role
from monolith.serving.shards.served_shard import serve_shard
from monolith.tables import Segment, TableConfig, TableGroup
from monolith.testing import FakeClock


class Recorded:
    """A backend, and who pushes for it; every run is told, and may fail."""

    num_shards = 4

    def __init__(self, fail: Callable[[int], OpError | None] = lambda number: None) -> None:
        self.asked: list[str] = []
        self.given: list[list[str]] = []
        self.limits: list[float] = []
        self.is_closed = False
        self._fail = fail
        self._changed = threading.Condition()

    def get_sync_targets(self, sub_graph: str) -> Sequence[str]:
        self.asked.append(sub_graph)
        return [f"127.0.0.1:{len(self.asked)}"]

    def open_pusher(self, ps_index: int) -> Recorded:
        return self

    def set_targets(self, targets: Sequence[str]) -> None:
        self.given.append(list(targets))

    def push(self, *, limit_seconds: float) -> None:
        with self._changed:
            self.limits.append(limit_seconds)
            self._changed.notify_all()
        error = self._fail(len(self.limits))
        if error is not None:
            raise error

    def close(self) -> None:
        self.is_closed = True

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.limits) >= count, 60)


def test_every_step_is_pushed_and_receivers_are_queried_again_after_a_hundred_seconds() -> None:
    clock = FakeClock()
    backend = Recorded()
    session = FakeSession()
    hook = ParameterSyncHook(backend, 2, clock=clock)
    hook.after_create_session(session)
    backend.wait(1)
    for step, seconds in enumerate((99.0, 1.0, 50.0, 50.0)):
        clock.advance(seconds)
        hook.after_run(session.context())
        backend.wait(step + 2)
    session.close()

    assert backend.asked == ["ps_2"] * 3
    assert backend.given == [["127.0.0.1:1"], ["127.0.0.1:2"], ["127.0.0.1:3"]]
    assert set(backend.limits) == {60.0}
    assert backend.is_closed


def test_a_push_that_fails_ends_neither_the_thread_nor_the_session() -> None:
    backend = Recorded(lambda number: UnavailableError("away") if number < 3 else None)
    session = FakeSession()
    hook = ParameterSyncHook(backend, 0)
    hook.after_create_session(session)
    for count in range(1, 5):
        backend.wait(count)
        hook.after_run(session.context())
    session.close()
    session.close()
    assert len(backend.limits) >= 5


def test_a_rebuilt_session_continues_with_one_thread_and_makes_the_last_push_at_its_end() -> None:
    backend = Recorded()
    session = FakeSession()
    hook = ParameterSyncHook(backend, 0)
    hook.after_create_session(session)
    hook.after_create_session(session)
    assert sum(thread.name == "monolith-push-0" for thread in threading.enumerate()) == 1
    backend.wait(1)
    before = len(backend.limits)
    session.close()
    assert len(backend.limits) > before
    assert not any(thread.name == "monolith-push-0" for thread in threading.enumerate())


def test_the_thread_of_a_server_pushes_by_its_interval() -> None:
    backend = Recorded()
    thread = PushThread(backend, 1, interval=0.001)
    thread.start()
    backend.wait(5)
    thread.close()
    thread.close()
    assert backend.asked[:5] == ["ps_1"] * 5


def test_the_thread_survives_unexpected_errors() -> None:
    backend = Recorded()
    thread = PushThread(backend, 1, interval=0.001)
    asks = FailingOnce(backend.get_sync_targets, thread="monolith-push-1")
    backend.get_sync_targets = asks  # type: ignore[method-assign]
    thread.start()
    asks.require_survived()
    thread.close()


@pytest.mark.parametrize("num_shards", [1, 2])
def test_rows_of_a_session_reach_receivers_to_the_last_one(tmp_path: Path, num_shards: int) -> None:
    embeddings = Embeddings(slots={"item": Slot(dim=2)})
    table = TableGroup.of_store(embeddings.store)[embeddings.store.schema.names[0]]
    session = FakeSession(state=TrainState(model=embeddings))
    tables = {"model": {table.name: TableConfig([Segment(2)], serving=True)}}
    shards = [serve_shard("m", f"{index}/{num_shards}", tables=tables) for index in range(num_shards)]
    log = str(tmp_path / "log")
    with HostServiceDiscovery(str(tmp_path / "hosts")) as discovery:
        for index, shard in enumerate(shards):
            discovery.register(shard_role("m", index), 0, shard.server.address)
        backend = DiscoverySyncBackend(discovery, log, "m", num_shards, timeout_seconds=60.0)
        hooks = [
            DeltaPublishHook(log, publish_dense=False),
            *(ParameterSyncHook(backend, i) for i in range(num_shards)),
        ]
        for hook in hooks:
            hook.after_create_session(session)
        for step in range(5):
            ids = torch.arange(10 * step, 10 * step + 20)
            table.assign(ids, torch.full((20, 2), step + 1.0))
            for hook in hooks:
                hook.after_run(session.context())
        session.close()
    served = sum(shard.server.tables.num_rows for shard in shards)
    found = {
        key: float(value[0])
        for shard in shards
        for block in shard.stores["model"].cut().blocks(range(1024), state=False)
        for key, value in zip(block.keys.tolist(), block.payload.view("<f4"), strict=True)
    }
    for shard in shards:
        shard.close()
    assert served == 60
    assert found == {key: float(table.lookup([key])[0, 0]) for key in range(60)}
