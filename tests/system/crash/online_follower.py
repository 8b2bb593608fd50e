"""A follower of an online tree: reports the chunks it has seen, and records its versions and finally its rows."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.deltalog import DeltaLog, Increment, IncrementKind
from monolith.deltalog.follow.base_state import stores_of_log
from monolith.errors import FailedPreconditionError, NotFoundError, UnavailableError
from monolith.nn.embeddings.slot_address import slot_addresses
from monolith.online import Follower
from monolith.tables import TableGroup
from monolith.tables.formats.row_block import BlockKind, PackedBlocks
from monolith.tables.local.store import LocalStore
from monolith.tables.store import Store
from system.crash.online_events import NUM_ITEMS, OnlineTraffic
from system.crash.processes import Tell
from system.crash.stream_task import StreamCountingTask

STORE = "emb"
_POLL_SECONDS = 0.01
_ALL_BUCKETS = range(1024)


def rows_of(store: Store) -> dict[str, str]:
    """Returns table, key and time of every row -> its serving bytes."""
    names = store.schema.names
    found: dict[str, str] = {}
    cut = store.cut()
    try:
        for block in cut.blocks(_ALL_BUCKETS, state=False):
            if block.kind is not BlockKind.SERVING:
                continue
            for key, seen, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True):
                found[f"{names[block.table]} {key} {seen}"] = payload.tobytes().hex()
    finally:
        cut.release()
    return found


def slot_keys(slot: str, ids: range) -> tuple[str, torch.Tensor]:
    """Returns the table of a slot of `StreamCountingTask`, and the keys of some ids, small and consecutive."""
    task = StreamCountingTask()
    task.make_model()
    address = slot_addresses(task.emb, STORE)[slot]
    first = address.key_of(0)[0]
    return address.table, torch.arange(first + ids.start, first + ids.stop)


def follow(traffic: OnlineTraffic, log: DeltaLog, written: Path, tell: Tell) -> dict[str, Any]:
    """Follows until SIGTERM, then applies the rest of the log.

    Args:
        traffic: Events to check for.
        log: Log to follow.
        written: Prefix of the names of the output files.
        tell: Reports to the parent that the log exists, and the visible chunks and events.
    """
    asked: list[int] = []
    signal.signal(
        signal.SIGTERM, lambda number, _: asked.append(number)
    )  # not an Event: its lock may be held when the signal arrives
    stores = _stores(log, asked)
    seen = _Seen(traffic, stores[STORE])
    versions = os.open(written.with_suffix(".versions"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(found: Increment) -> None:
        seen.note(found)
        line = {"version": follower.version, "oldest": seen.oldest_passed()}
        os.write(versions, json.dumps(line).encode() + b"\n")

    with Follower(stores, log, on_increment=note) as follower:
        follower.start()
        while not asked:
            time.sleep(_POLL_SECONDS)
            seen.look(tell)
        follower.pause()
        follower.catch_up()
        seen.look(tell)
        found = {"rows": rows_of(stores[STORE]), "staleness": follower.staleness, **seen.to_dict()}
    path = written.with_suffix(".found")
    path.write_text(json.dumps(found), encoding="utf-8")
    return {"found": str(path)}


def _stores(log: DeltaLog, asked: list[int]) -> dict[str, LocalStore]:
    """Creates stores with the schema of the log, once it exists; `asked` is not empty when a stop is requested."""
    while True:
        try:
            stores = stores_of_log(log)
        except (NotFoundError, FailedPreconditionError, UnavailableError):
            stores = {}
        if STORE in stores:
            return stores
        time.sleep(_POLL_SECONDS)
        if asked:
            raise NotFoundError(f"delta log '{log.place}': it does not exist, and no process will write it")


class _Seen:
    """The visible events, and since when."""

    def __init__(self, traffic: OnlineTraffic, store: LocalStore) -> None:
        self._traffic = traffic
        table, self._keys = slot_keys("event", range(traffic.num_events))
        tables = TableGroup.of_store(store)
        self._rows = tables[table]
        self._table = store.schema.names.index(table)
        self._chunk = 0
        self._told = (-1, -1)
        self._came = np.full(traffic.num_events, np.nan)
        self._passed = np.zeros(traffic.num_events, bool)
        passing, keys = slot_keys("passing", range(1))
        self._passing, self._first_passing = store.schema.names.index(passing), int(keys[0])
        taste, self._taste_keys = slot_keys("taste", range(NUM_ITEMS))
        self._taste_rows = tables[taste]
        self._tastes: dict[int, list[float]] = {}

    def look(self, tell: Tell) -> None:
        """Reports the number of visible chunks, and of events, which are all checked once every chunk has arrived."""
        traffic = self._traffic
        while self._chunk < traffic.num_chunks and self._count(traffic.marks(self._chunk)) == traffic.partitions:
            self._chunk += 1
        events = self._count(range(traffic.num_events)) if self._chunk == traffic.num_chunks else 0
        if self._told != (self._chunk, events):
            self._told = (self._chunk, events)
            self._tastes[self._chunk] = self._taste_rows.lookup(self._taste_keys).reshape(-1).tolist()
            tell({"ready": True, "chunks": self._chunk, "events": events})

    def note(self, found: Increment) -> None:
        """Records the events of an increment as visible now."""
        if found.kind is not IncrementKind.ROWS or not found.payload:
            return
        now, first = time.time(), int(self._keys[0])
        for block in PackedBlocks(found.payload):
            if block.kind is not BlockKind.SERVING:
                continue
            if block.table == self._table:
                events = self._events(block.keys - first)
                self._came[events] = np.fmin(self._came[events], now)
            if block.table == self._passing:
                self._passed[self._events(block.keys - self._first_passing)] = True

    def to_dict(self) -> dict[str, Any]:
        """Returns the observations as JSON values.

        ``came`` holds for each event the second when it was first visible, ``tastes`` the logits of the items by the
        number of visible chunks.
        """
        came = [None if np.isnan(each) else each for each in self._came.tolist()]
        return {"came": came, "tastes": self._tastes}

    def oldest_passed(self) -> int | None:
        """Returns the first event whose row of the expiring slot has arrived, even if expired since; None: none has."""
        found = self._passed.nonzero()[0]
        return int(found[0]) if len(found) else None

    def _events(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return numbers[(numbers >= 0) & (numbers < self._traffic.num_events)]

    def _count(self, events: range) -> int:
        return int((self._rows.lookup(self._keys[events.start : events.stop]) != 0).sum())
