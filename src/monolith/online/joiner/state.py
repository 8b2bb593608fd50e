"""The state of one partition: what is undecided, how far inputs were read, and examples on their way out, in SQLite.

A step is one transaction. `held` has a copy of every entry in memory, `spilled` those for which memory had no room;
`outbox` has examples until they are in the output. A process that dies leaves the state behind its last step.
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
from monolith.files import named_errors
from monolith.online.joiner.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from monolith.online.joiner.machine import JoinMachine

__all__ = ["Head", "PartitionState"]

_VERSION = 1
_ENTRY = "row INTEGER PRIMARY KEY, key BLOB, due INTEGER, stage INTEGER, time INTEGER, out BLOB, held BLOB, sample BLOB"
_SCHEMA = (
    f"CREATE TABLE held ({_ENTRY})",
    f"CREATE TABLE spilled ({_ENTRY})",
    "CREATE UNIQUE INDEX spilled_by_key ON spilled (key)",
    "CREATE INDEX spilled_by_due ON spilled (due)",
    "CREATE TABLE outbox (last INTEGER PRIMARY KEY, examples BLOB)",
    "CREATE TABLE head (id INTEGER PRIMARY KEY, value TEXT)",
)
_PUT = "(row, key, due, stage, time, out, held, sample) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_AT_ONCE = 1000
"""Entries that are brought in together when they are due."""
_CACHE_KIBIBYTES = 16 << 10
_SPILLED_DOWN_TO = 0.75
"""Of the memory, so that not every step spills."""


@dataclass(slots=True)
class Head:
    """All of a state that is small."""

    offsets: dict[str, int] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    watermark_ms: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    last_number: int = 0
    """Of the examples that were made."""
    sent_number: int = 0
    """Of those that are in the output."""
    sent_place: int = 0
    """Where the output ends behind that one."""
    num_spilled: int = 0
    next_row: int = 1


class PartitionState:
    """The file of one partition. Belongs to one thread, and to one process: whoever opens it holds its lock.

    Args:
        path: The file, made if it is not there.
        identity: What the state is of; another one is refused.
        memory_bytes: For entries in memory; the oldest of those beyond go to disk.
        max_bytes: Of the file; None: as much as there is room.
    """

    def __init__(
        self, path: str, *, identity: Mapping[str, Any], memory_bytes: int, max_bytes: int | None = None
    ) -> None:
        self.path = path
        self.head = Head()
        self._identity = dict(identity)
        self._memory_bytes = memory_bytes
        with self._named():
            with named_errors(path, "written"):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, isolation_level=None)
            try:
                self._prepare(max_bytes)
            except BaseException:
                self._database.close()
                raise

    def close(self) -> None:
        """Closes the file; a step that was not committed is undone."""
        with self._named():
            self._database.close()

    def load(self, machine: JoinMachine) -> None:
        """Brings in what was in memory."""
        with self._named():
            for row, key, *columns in self._database.execute("SELECT * FROM held ORDER BY row"):
                machine.bring_in(key, Entry.from_row(row, columns))

    def begin(self) -> None:
        """Begins a step."""
        with self._named():
            self._database.execute("BEGIN IMMEDIATE")

    def bring_in(self, machine: JoinMachine, keys: Iterable[bytes]) -> None:
        """Brings in the entries of these keys that are on disk only."""
        if not self.head.num_spilled:
            return
        found = []
        with self._named():
            for key in {key for key in keys if key not in machine.entries}:
                row = self._database.execute("SELECT * FROM spilled WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    found.append(row)
        self._take(machine, found)

    def bring_due(self, machine: JoinMachine, watermark_ms: int) -> bool:
        """Brings in some of the entries on disk that are due; whether there were any."""
        if not self.head.num_spilled:
            return False
        query = "SELECT * FROM spilled WHERE due <= ? ORDER BY due, row LIMIT ?"
        with self._named():
            found = self._database.execute(query, (watermark_ms, _AT_ONCE)).fetchall()
        self._take(machine, found)
        return bool(found)

    def has_due(self, machine: JoinMachine, watermark_ms: int) -> bool:
        """Whether something is due at this time of events."""
        if machine.has_due(watermark_ms) or not self.head.num_spilled:
            return machine.has_due(watermark_ms)
        with self._named():
            (first,) = self._database.execute("SELECT min(due) FROM spilled").fetchone()
        return first is not None and int(first) <= watermark_ms

    def last_due(self, machine: JoinMachine) -> int:
        """When the last entry will be due; 0 if there is none."""
        with self._named():
            (spilled,) = self._database.execute("SELECT max(due) FROM spilled").fetchone()
        return max([spilled or 0, *(entry.due_ms for entry in machine.entries.values())])

    def commit(self, machine: JoinMachine, packed: bytes) -> None:
        """Ends a step: what changed in the machine, the head and the examples that came out, all or nothing."""
        with self._named():
            database = self._database
            if machine.removed:
                database.executemany("DELETE FROM held WHERE row = ?", [(row,) for row in machine.removed])
            if machine.num_bytes > self._memory_bytes:
                self._spill(machine)
            database.executemany(f"INSERT OR REPLACE INTO held {_PUT}", self._rows(machine.changed))
            database.execute("DELETE FROM outbox WHERE last <= ?", (self.head.sent_number,))
            if packed:
                database.execute("INSERT INTO outbox VALUES (?, ?)", (self.head.last_number, packed))
            self._save_head()
            database.execute("COMMIT")
        machine.saved()

    def outbox(self) -> list[bytes]:
        """The examples that may not be in the output, packed, in their order."""
        with self._named():
            return [packed for (packed,) in self._database.execute("SELECT examples FROM outbox ORDER BY last")]

    def _rows(self, entries: Mapping[bytes, Entry]) -> list[tuple[Any, ...]]:
        rows = []
        for key, entry in entries.items():
            if not entry.row:
                entry.row = self.head.next_row
                self.head.next_row += 1
            rows.append((entry.row, key, *entry.to_row()))
        return rows

    def _take(self, machine: JoinMachine, found: list[tuple[Any, ...]]) -> None:
        """Moves entries from the disk to the machine."""
        with self._named():
            self._database.executemany("DELETE FROM spilled WHERE row = ?", [(row,) for row, *_ in found])
        self.head.num_spilled -= len(found)
        for _, key, *columns in found:
            entry = Entry.from_row(0, columns)
            machine.bring_in(key, entry)
            machine.changed[key] = entry

    def _spill(self, machine: JoinMachine) -> None:
        """Leaves to the disk what has waited longest: most actions follow soon."""
        aim = _SPILLED_DOWN_TO * self._memory_bytes
        left, chosen = float(machine.num_bytes), {}
        for key, entry in machine.entries.items():
            if left <= aim:
                break
            left -= entry.num_bytes + len(key)
            chosen[key] = entry
            machine.changed.pop(key, None)
        kept = [(entry.row,) for entry in chosen.values() if entry.row]
        self._database.executemany("DELETE FROM held WHERE row = ?", kept)
        self._database.executemany(f"INSERT INTO spilled {_PUT}", self._rows(chosen))
        self.head.num_spilled += len(chosen)
        machine.put_out(chosen)

    def _save_head(self) -> None:
        self._database.execute("INSERT OR REPLACE INTO head VALUES (0, ?)", (json.dumps(asdict(self.head)),))

    def _prepare(self, max_bytes: int | None) -> None:
        database = self._database
        # One process has the file, so that no memory has to be shared; a step is on disk when it is committed.
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
                f"state '{self.path}': version {version}, this program knows {_VERSION}; let the newer one go on"
            )
        found = dict(database.execute("SELECT id, value FROM head").fetchall())
        self.head = Head(**json.loads(found[0]))
        self._check_identity(json.loads(found[1]))

    def _create(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            self._database.execute(statement)
        self._database.execute("INSERT INTO head VALUES (1, ?)", (json.dumps(self._identity),))
        self._save_head()
        self._database.execute(f"PRAGMA user_version={_VERSION}")
        self._database.execute("COMMIT")

    def _check_identity(self, found: Mapping[str, Any]) -> None:
        for name, expected in self._identity.items():
            if found.get(name) != expected:
                raise FailedPreconditionError(
                    f"state '{self.path}': was begun with {name} {found.get(name)!r}, got {expected!r}; go on with what"
                    " it was begun with, or give another state_dir and output"
                )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of SQLite under names of ours."""
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
                " nothing is lost, the joiner goes on where it was"
            )
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return DataLossError(f"{text}; restore the file, or begin with another state_dir and output")
        if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
            return PermissionDeniedError(text)
        return FileUnavailableError(text)
