"""Calls on all rows of a store: touch, erase, load, resume, assign, evict, stats. Every rank does its part."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith import _core
from monolith.collective.sharded.calls import gather_texts, pack, settled, stamps_from_plain, stamps_to_plain, unpack
from monolith.tables import (
    ALL_BUCKETS,
    LoadReport,
    OwnerClock,
    StoreStats,
    emptied_by,
    require_assignable,
    shared_buckets,
    stats_of_all,
    sum_by_slot,
    sum_of_reports,
)
from monolith.tables.formats import RowBlock
from monolith.tables.local import agreed_stamps, stamp_to_core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monolith.collective.sharded.calls import RankCalls
    from monolith.collective.sharded.exchange import SharedClock
    from monolith.collective.sharded.owner import RowOwner
    from monolith.tables.local import LocalHistory, LocalStore

_SUBJECT = "sharded store"
_ALL_TABLES = -1


class WholeCalls:
    """The calls of each rank on all rows."""

    def __init__(
        self,
        calls: RankCalls,
        local: LocalStore,
        owned: range,
        history: LocalHistory,
        owner: RowOwner,
        clock: SharedClock,
    ) -> None:
        self._calls = calls
        self._wire = calls.wire
        self._local = local
        self._core = local.native.core
        self._owned = owned
        self._history = history
        self._owner = owner
        self._clock = clock
        calls.define("touch", self._touch)
        calls.define("erase", self._erase)
        calls.define("load", self._load)
        calls.define("resume", self._resume)
        calls.define("assign", self._assign)
        calls.define("evict", self._evict)
        calls.define("stats of", self._stats)
        calls.define("rows by slot of", self._rows_by_slot)

    def touch(self, table: str, ids: NDArray[np.int64], buckets: NDArray[np.uint16] | None) -> None:
        """Marks rows as changed; see `Store.touch`."""
        self._calls.run("touch", pack(table, [ids.tobytes(), b"" if buckets is None else buckets.tobytes()]))

    def erase(self, table: str, ids: NDArray[np.int64], buckets: NDArray[np.uint16] | None) -> int:
        """Removes rows; see `Store.erase`."""
        arguments = pack(table, [ids.tobytes(), b"" if buckets is None else buckets.tobytes()])
        count: int = self._calls.run("erase", arguments)
        return count

    def load(self, blocks: Sequence[RowBlock], buckets: range, *, replace: bool) -> LoadReport:
        """Loads rows; see `Store.load`."""
        head = [buckets.start, buckets.stop, replace]
        report: LoadReport = self._calls.run("load", pack(head, [block.data for block in blocks]))
        return report

    def resume(self, applied: Sequence[OwnerClock], generation: int) -> None:
        """Resumes from the progress of a saved run; see `Store.resume`. All ranks get all stamps."""
        stamps = agreed_stamps(applied, ALL_BUCKETS)
        self._calls.run("resume", pack([generation, stamps_to_plain(stamps.values())]))

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Assigns weights; see `Store.assign`."""
        require_assignable(block, self._local.schema, subject=_SUBJECT)
        self._calls.run("assign", pack(add, [block.data]))

    def evict(self, now: int) -> int:
        """Removes expired rows."""
        count: int = self._calls.run("evict", pack(now))
        return count

    def stats(self, *, open_plans: int) -> StoreStats:
        """Returns the statistics of all ranks."""
        parts: list[StoreStats] = self._calls.run("stats of")
        return stats_of_all(parts, open_plans=open_plans, times_ahead=self._clock.num_ahead)

    def rows_by_slot(self, table: str) -> dict[int, int]:
        """Returns rows by slot; see `Store.rows_by_slot`."""
        rows: dict[int, int] = self._calls.run("rows by slot of", pack(table))
        return rows

    # In the line

    def agree_on_newest_times(self) -> None:
        """Shares the newest times: expiry counts from the newest time of a table, on whichever rank it is."""
        mine = [self._core.newest_time(table) for table in range(self._core.num_tables)]
        times = torch.stack(self._wire.gather(torch.tensor(mine, dtype=torch.int64)))
        for table, newest in enumerate(times.amax(0).tolist()):
            self._core.raise_newest_time(table, newest)

    def refresh_newest_time(self) -> None:
        """Shares the newest time again, after rows were replaced."""
        times = self._wire.gather(torch.tensor([self._core.newest_time(_ALL_TABLES)]))
        self._clock.newest = max(int(time) for time in times)
        self._core.raise_newest_time(_ALL_TABLES, self._clock.newest)

    def _touch(self, arguments: bytes, _: object) -> None:
        settled(self._wire, lambda: b"%d" % self._core.touch(*self._own_of(arguments)))

    def _erase(self, arguments: bytes, _: object) -> int:
        counts = settled(self._wire, lambda: b"%d" % self._core.erase(*self._own_of(arguments)))
        return sum(int(count) for count in counts)

    def _own_of(self, arguments: bytes) -> tuple[int, NDArray[np.int64], NDArray[np.uint16] | None]:
        """Returns the number of the table, and the ids and buckets of a call that belong to this rank."""
        table, (ids, buckets) = unpack(arguments)
        keys = np.frombuffer(ids, np.int64)
        explicit = np.frombuffer(buckets, np.uint16) if buckets else None
        of_keys = _core.bucket_of(keys) if explicit is None else explicit
        mine = (of_keys >= self._owned.start) & (of_keys < self._owned.stop)
        return self._local.native.number_of(table), keys[mine], None if explicit is None else explicit[mine]

    def _load(self, arguments: bytes, _: object) -> LoadReport:
        (begin, end, replace), blobs = unpack(arguments)
        buckets, blocks = range(begin, end), [RowBlock(blob) for blob in blobs]
        own_buckets = shared_buckets(self._owned, buckets)
        own = [block for block in blocks if block.bucket in own_buckets]
        settled(self._wire, lambda: self._check_load(own, own_buckets, replace=replace))
        emptied = emptied_by(own_buckets, buckets) if replace else None

        def load() -> bytes:
            return pack(asdict(self._local.load_emptied(own, buckets=own_buckets, emptied=emptied)))

        reports = [LoadReport(**unpack(answer)[0]) for answer in settled(self._wire, load)]
        self.refresh_newest_time()
        outside = sum(max(1, block.count) for block in blocks if block.bucket not in buckets)
        return sum_of_reports([*reports, LoadReport(ignored=outside)])

    def _check_load(self, own: Sequence[RowBlock], own_buckets: range, *, replace: bool) -> bytes:
        self._local.require_loadable(own, buckets=own_buckets)
        if replace:
            self._core.clear_buckets(own_buckets.start, own_buckets.start)  # raises if a cut is open; clears nothing
        return b""

    def _resume(self, arguments: bytes, _: object) -> None:
        (generation, plain), _blobs = unpack(arguments)
        stamps = stamps_from_plain(plain)
        present = self._history.at(0).generation
        lives = [unpack(text)[0] for text in gather_texts(self._wire, pack([present, secrets.randbits(63)]))]
        self._history.take_life(max(generation, *(life[0] for life in lives)) + 1, lives[0][1])
        self._owner.end_incarnations()
        self._core.resume([stamp_to_core(stamp) for stamp in stamps.values()])
        self.refresh_newest_time()

    def _assign(self, arguments: bytes, _: object) -> None:
        add, (data,) = unpack(arguments)
        block = RowBlock(data)
        bounded = self._clock.bounded(block.times.astype(np.int64))

        def assign() -> bytes:
            if block.bucket in self._owned:
                self._local.assign_at(block, bounded.times, add=add)
            return b""

        settled(self._wire, assign)
        self._clock.count(bounded)
        self._clock.newest = max(self._clock.newest, int(bounded.times.max(initial=0)))
        self._core.raise_newest_time(_ALL_TABLES, self._clock.newest)

    def _evict(self, arguments: bytes, _: object) -> int:
        now, _blobs = unpack(arguments)
        self.agree_on_newest_times()
        return sum(int(answer) for answer in settled(self._wire, lambda: b"%d" % self._local.evict(now=now)))

    def _rows_by_slot(self, arguments: bytes, _: object) -> dict[int, int]:
        table, _blobs = unpack(arguments)
        answers = settled(self._wire, lambda: pack(list(self._local.rows_by_slot(table).items())))
        return sum_by_slot(dict(unpack(answer)[0]) for answer in answers)

    def _stats(self, _: bytes, __: object) -> list[StoreStats]:
        return [
            _stats_of(unpack(answer)[0]) for answer in settled(self._wire, lambda: pack(_plain(self._local.stats())))
        ]


def _plain(stats: StoreStats) -> dict[str, Any]:
    values = asdict(stats)
    return {**values, "applied": list(values["applied"].items())}


def _stats_of(plain: dict[str, Any]) -> StoreStats:
    return StoreStats(**{**plain, "applied": dict(plain["applied"])})
