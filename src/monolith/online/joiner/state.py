"""The state of one partition in SQLite: undecided entries, input positions, and examples not yet sent.

A step is one transaction. `steps` has the entries added or changed in each step as one blob; the last version of a key
counts, and a due entry is discarded (see `EntryLog`). `spilled` has the entries that did not fit in memory, `outbox`
the examples until they are in the output. After a crash the state is that of the last committed step. Other processes
are kept out by a `FileLock` next to the state.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    FileUnavailableError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from monolith.files import LocalStorage, named_errors
from monolith.online.joiner.machine import OVERHEAD_BYTES, pack_entries, unpack_entries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from monolith.online.joiner.endpoints import JoinPosition
    from monolith.online.joiner.machine import Entry, JoinMachine

_VERSION = 2
_SCHEMA = (
    "CREATE TABLE steps (number INTEGER PRIMARY KEY, entries BLOB)",
    "CREATE TABLE spilled (row INTEGER PRIMARY KEY, key BLOB, due INTEGER, entry BLOB)",
    "CREATE UNIQUE INDEX spilled_by_key ON spilled (key)",
    "CREATE INDEX spilled_by_due ON spilled (due)",
    "CREATE TABLE outbox (last INTEGER PRIMARY KEY, examples BLOB)",
    "CREATE TABLE head (id INTEGER PRIMARY KEY, value TEXT)",
)
_AT_ONCE = 1000
"""Number of due entries that are loaded together."""
_CACHE_KIBIBYTES = 16 << 10
_SPILLED_DOWN_TO = 0.75
"""Fraction of the memory that remains in use after a spill, so that not every step spills."""


@dataclass(slots=True)
class StateHeader:
    """The small part of a state."""

    offsets: dict[str, JoinPosition] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    watermark_ms: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    last_number: int = 0
    """Number of the last emitted example."""
    sent_number: int = 0
    """Number of the last example in the output."""
    sent_place: int = 0
    """Position in the output after that example."""
    num_spilled: int = 0
    last_step: int = 0


class PartitionState:
    """The database of one partition. Not thread-safe; the process that opens it must hold the partition lock.

    A state with another identity is rejected. The oldest entries beyond `memory_bytes` are moved to disk; `max_bytes`
    limits the file.
    """

    def __init__(
        self, path: str, *, identity: Mapping[str, Any], memory_bytes: int, max_bytes: int | None = None
    ) -> None:
        self.path = path
        self.head = StateHeader()
        self._identity = dict(identity)
        self._log = EntryLog()
        self._memory_bytes = memory_bytes
        with self._named():
            with named_errors(path, "written"):
                LocalStorage(Path(path).parent).make()
            self._database = sqlite3.connect(path, isolation_level=None)
            try:
                self._prepare(max_bytes)
            except BaseException:
                self._database.close()
                raise

    def close(self) -> None:
        """Closes the file; an uncommitted step is rolled back."""
        with self._named():
            self._database.close()

    def load(self, machine: JoinMachine) -> None:
        """Loads the entries that were in memory."""
        known: dict[bytes, Entry] = {}
        sizes: dict[int, int] = {}
        with self._named():
            for number, entries in self._database.execute("SELECT number, entries FROM steps ORDER BY number"):
                sizes[number] = len(entries)
                for key, entry in self._unpacked(entries, number):
                    if entry is None:
                        known.pop(key, None)
                    else:
                        known[key] = entry
        # Due entries were discarded in the step itself: after a step nothing is due.
        watermark_ms = self.head.watermark_ms
        known = {key: entry for key, entry in known.items() if entry.due_ms > watermark_ms}
        by_step: dict[int, dict[bytes, Entry]] = {number: {} for number in sizes}
        for key, entry in known.items():
            by_step[entry.step][key] = entry
            entry.step = 0
            machine.insert(key, entry)
        for number, entries in by_step.items():
            self._log.add(number, entries, num_bytes=sizes[number])

    def begin(self) -> None:
        """Begins a step."""
        with self._named():
            self._database.execute("BEGIN IMMEDIATE")

    def insert(self, machine: JoinMachine, keys: Iterable[bytes]) -> None:
        """Loads the entries of these keys that are only on disk."""
        if not self.head.num_spilled:
            return
        rows = []
        with self._named():
            for key in {key for key in keys if key not in machine.entries}:
                row = self._database.execute("SELECT row, entry FROM spilled WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    rows.append(row)
        self._take(machine, rows)

    def bring_due(self, machine: JoinMachine, watermark_ms: int) -> bool:
        """Loads some of the due entries on disk; returns whether there were any."""
        if not self.head.num_spilled:
            return False
        query = "SELECT row, entry FROM spilled WHERE due <= ? ORDER BY due, row LIMIT ?"
        with self._named():
            rows = self._database.execute(query, (watermark_ms, _AT_ONCE)).fetchall()
        self._take(machine, rows)
        return bool(rows)

    def has_due(self, machine: JoinMachine, watermark_ms: int) -> bool:
        """Returns whether an entry is due at this watermark."""
        if machine.has_due(watermark_ms) or not self.head.num_spilled:
            return machine.has_due(watermark_ms)
        with self._named():
            (first,) = self._database.execute("SELECT min(due) FROM spilled").fetchone()
        return first is not None and int(first) <= watermark_ms

    def last_due(self, machine: JoinMachine) -> int:
        """Returns when the last entry will be due; 0 if there is none."""
        with self._named():
            (spilled,) = self._database.execute("SELECT max(due) FROM spilled").fetchone()
        return max([spilled or 0, *(entry.due_ms for entry in machine.entries.values())])

    def commit(self, machine: JoinMachine, packed: bytes) -> None:
        """Commits a step atomically: changes of the machine, the head and the emitted examples."""
        with self._named():
            database, head = self._database, self.head
            self._log.release(machine.removed)
            gone = self._spill(machine) if machine.num_bytes > self._memory_bytes else ()
            self._save_entries(machine, gone)
            database.execute("DELETE FROM outbox WHERE last <= ?", (head.sent_number,))
            if packed:
                database.execute("INSERT INTO outbox VALUES (?, ?)", (head.last_number, packed))
            self._save_head()
            database.execute("COMMIT")
        machine.saved()

    def outbox(self) -> list[bytes]:
        """Returns the packed examples that may not be in the output yet, in order."""
        with self._named():
            return [packed for (packed,) in self._database.execute("SELECT examples FROM outbox ORDER BY last")]

    def _save_entries(self, machine: JoinMachine, gone: Sequence[bytes]) -> None:
        """Saves changed entries, and deletes steps that are no longer needed."""
        log, head = self._log, self.head
        entries = machine.changed
        if stale := log.stale(machine.entries, known_bytes=machine.num_bytes):
            entries = stale | entries
        if entries or gone:
            saved = pack_entries(entries.items(), gone)
            head.last_step += 1
            log.add(head.last_step, entries, num_bytes=len(saved))
            self._database.execute("INSERT INTO steps VALUES (?, ?)", (head.last_step, saved))
        if dead := log.take_dead():
            self._database.execute("DELETE FROM steps WHERE number <= ?", (dead,))

    def _take(self, machine: JoinMachine, rows: list[tuple[int, bytes]]) -> None:
        """Moves entries from the disk to the machine."""
        with self._named():
            self._database.executemany("DELETE FROM spilled WHERE row = ?", [(row,) for row, _ in rows])
        self.head.num_spilled -= len(rows)
        for key, entry in self._unpacked(b"".join([saved for _, saved in rows]), 0):
            if entry is not None:
                machine.insert(key, entry)
                machine.changed[key] = entry

    def _spill(self, machine: JoinMachine) -> list[bytes]:
        """Moves the longest-waiting entries to disk: most actions follow soon. Returns their keys in saved steps."""
        aim = _SPILLED_DOWN_TO * self._memory_bytes
        left, chosen = float(machine.num_bytes), {}
        for key, entry in machine.entries.items():
            if left <= aim:
                break
            left -= OVERHEAD_BYTES + len(entry.sample) + len(key)
            chosen[key] = entry
            machine.changed.pop(key, None)
        self._database.executemany(
            "INSERT INTO spilled (key, due, entry) VALUES (?, ?, ?)",
            [(key, entry.due_ms, pack_entries([(key, entry)])) for key, entry in chosen.items()],
        )
        self._log.release(entry.step for entry in chosen.values())
        self.head.num_spilled += len(chosen)
        machine.evict(chosen)
        return [key for key, entry in chosen.items() if entry.step]

    def _unpacked(self, data: bytes, step: int) -> Iterator[tuple[bytes, Entry | None]]:
        try:
            yield from unpack_entries(data, step=step)
        except ValueError as error:
            raise DataLossError(
                f"state '{self.path}': {error}; restore the file, or use another state_dir and output"
            ) from error

    def _save_head(self) -> None:
        self._database.execute("INSERT OR REPLACE INTO head VALUES (0, ?)", (json.dumps(asdict(self.head)),))

    def _prepare(self, max_bytes: int | None) -> None:
        database = self._database
        # One process has the file, so that no shared memory is needed; a committed step is on disk.
        for setting in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            database.execute(f"PRAGMA {setting}")
        database.execute(f"PRAGMA cache_size=-{_CACHE_KIBIBYTES}")
        if max_bytes is not None:
            (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
            database.execute(f"PRAGMA max_page_count={max(1, max_bytes // page_bytes)}")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._create()
        elif version != _VERSION:
            raise FailedPreconditionError(
                f"state '{self.path}': expected version {_VERSION}, got {version}; resume with the release that"
                " created it, or use another state_dir and output"
            )
        values = dict(database.execute("SELECT id, value FROM head").fetchall())
        self.head = StateHeader(**json.loads(values[0]))
        self._check_identity(json.loads(values[1]))

    def _create(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            self._database.execute(statement)
        self._database.execute("INSERT INTO head VALUES (1, ?)", (json.dumps(self._identity),))
        self._save_head()
        self._database.execute(f"PRAGMA user_version={_VERSION}")
        self._database.execute("COMMIT")

    def _check_identity(self, saved: Mapping[str, Any]) -> None:
        for name, expected in self._identity.items():
            if saved.get(name) != expected:
                raise FailedPreconditionError(
                    f"state '{self.path}': was created with {name} {saved.get(name)!r}, got {expected!r}; resume"
                    " with the former value, or use another state_dir and output"
                )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Translates errors of SQLite to those of this library."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._error_of(error) from error

    def _error_of(self, error: sqlite3.Error) -> OpError:
        text = f"state '{self.path}': {error}"
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return ResourceExhaustedError(
                f"{text}; the window does not fit: make room, raise max_state_bytes, or shorten the window;"
                " nothing is lost, the joiner resumes where it stopped"
            )
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return DataLossError(f"{text}; restore the file, or use another state_dir and output")
        if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
            return PermissionDeniedError(text)
        return FileUnavailableError(text)


# Every step saves the entries that were added or changed in it as one blob. Steps are deleted from the oldest one on,
# so that a later version of a key is never deleted before an earlier one, and older versions need no lookup.

_SLACK_BYTES = 1 << 20
"""Bytes of steps allowed beyond twice the live entries, so that a small state is not rewritten all the time."""


@dataclass(slots=True)
class _Step:
    keys: Collection[bytes]
    num_bytes: int
    num_live: int


class EntryLog:
    """The steps on disk. Not thread-safe; the owner does the saving."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        self.num_bytes = 0
        """Total size of all steps."""

    def add(self, number: int, entries: Mapping[bytes, Entry], *, num_bytes: int) -> None:
        """Records that a step saved these entries, which supersedes earlier saves."""
        steps = self._steps
        for entry in entries.values():
            if entry.step:
                steps[entry.step].num_live -= 1
            entry.step = number
        steps[number] = _Step(list(entries), num_bytes, len(entries))
        self.num_bytes += num_bytes

    def release(self, steps: Iterable[int]) -> None:
        """Records that an entry of each of these steps was discarded, or is stored elsewhere."""
        for step in steps:
            if step:
                self._steps[step].num_live -= 1

    def stale(self, entries: Mapping[bytes, Entry], *, known_bytes: int) -> dict[bytes, Entry]:
        """Returns the live entries to rewrite so that old steps can be deleted; none if there is little garbage."""
        live: dict[bytes, Entry] = {}
        left = self.num_bytes
        for number, step in self._steps.items():
            if left <= 2 * known_bytes + _SLACK_BYTES:
                break
            left -= step.num_bytes
            if step.num_live:
                for key in step.keys:
                    entry = entries.get(key)
                    if entry is not None and entry.step == number:
                        live[key] = entry
        return live

    def take_dead(self) -> int:
        """Drops the oldest steps without live entries; returns the number of the last one, 0 if there is none."""
        last = 0
        for number, step in self._steps.items():
            if step.num_live:
                break
            last = number
            self.num_bytes -= step.num_bytes
        for number in [number for number in self._steps if number <= last] if last else ():
            del self._steps[number]
        return last
