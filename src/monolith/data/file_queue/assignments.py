"""Assignment of files to workers on demand: the state of a `FileQueue`, without its I/O.

Two queues, as in ByteDance Monolith: patterns that were not expanded yet, and files that were not taken yet; the second
is filled from the first on demand. The state is a function of a list of events, so only a log of events must be stored.
Every file that a worker took has a turn; requesting the turn again returns the same file. In a log, an event is a line:
the CRC-32 of the event in hexadecimal, a space, and the event in JSON.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monolith.data.pipeline.draws import permutation
from monolith.errors import DataLossError, FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Event = dict[str, Any]
"""``{"found": [files]}``, ``{"take": [epoch, worker, number, place, was_returned]}`` or
``{"give_back": [worker, [[epoch, number, place], ...]]}``, in JSON."""


@dataclass(frozen=True, slots=True)
class FileRemainder:
    """A file by its number, from a place on; None: from its start."""

    number: int
    place: Any = None


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """Progress of a worker when it saved its position."""

    epoch: int
    turns: int
    """Number of its files of this epoch."""
    places: Mapping[int, Any]
    """Turns of the files that were open, and how far each was read."""


@dataclass(slots=True)
class _Pass:
    """One epoch."""

    order: list[int] = field(default_factory=list)
    num_groups: int = 0
    """Groups of files that are in the order."""
    num_taken: int = 0
    """Files of the order that were taken."""
    returned: list[FileRemainder] = field(default_factory=list)
    """Pieces that workers gave back; they are assigned first."""
    taken: dict[int, list[FileRemainder]] = field(default_factory=dict)
    """Worker -> what it took, by turn."""


class FileAssignments:
    """The state of a queue. Not thread-safe; `event` methods decide, `apply` changes.

    Args:
        num_look_ups: Times that files are looked up, by one pattern after another.
        seed: Shuffles the files of each look-up, differently in each epoch; None keeps them sorted.
    """

    def __init__(self, num_look_ups: int, *, seed: int | None = None) -> None:
        self._num_look_ups = num_look_ups
        self._seed = seed
        self.files: list[str] = []
        self._groups: list[int] = []
        """Number of files of each look-up so far."""
        self._passes: dict[int, _Pass] = {}
        self._gone: set[int] = set()

    @property
    def workers(self) -> list[int]:
        """Workers that took files and did not give them back."""
        return sorted({worker for epoch_pass in self._passes.values() for worker in epoch_pass.taken} - self._gone)

    def waiting(self, epoch: int) -> int:
        """Returns the number of found files and parts that are not assigned in this epoch."""
        now = self._pass(epoch)
        return len(now.returned) + len(now.order) - now.num_taken

    def num_taken(self, worker: int, epoch: int) -> int:
        """Turns that the worker had.

        Raises:
            FailedPreconditionError: it gave back its files.
        """
        if worker in self._gone:
            raise FailedPreconditionError(
                f"worker {worker} of a file queue gave back its files, which others read by now; start it under a "
                "number that was not used yet"
            )
        return len(self._pass(epoch).taken.get(worker, []))

    def taken(self, worker: int, turn: int, epoch: int) -> FileRemainder | None:
        """Returns what the worker took at this turn; None if the turn is the next one.

        Raises:
            FailedPreconditionError: the worker gave back its files, or the turn is beyond its next one.
        """
        turns = self.num_taken(worker, epoch)
        if turn > turns:
            raise FailedPreconditionError(
                f"worker {worker} of a file queue resumes after {turn} files, but the queue assigned it {turns}: the "
                "state of the queue is older than the position; restore the state saved with it, or a later one"
            )
        return self._pass(epoch).taken[worker][turn] if turn < turns else None

    @property
    def next_look_up(self) -> int | None:
        """Returns the number of the next pattern to expand; None when all were."""
        return len(self._groups) if len(self._groups) < self._num_look_ups else None

    def found(self, files: Sequence[str]) -> Event:
        """Returns the event of an expanded pattern, without files that were found already."""
        known = set(self.files)
        return {"found": sorted(set(files) - known)}

    def take(self, worker: int, epoch: int) -> Event | None:
        """Returns the event by which the worker takes the next file; None when there is none, or none was found yet."""
        now = self._pass(epoch)
        if now.returned:
            piece = now.returned[0]
            return {"take": [epoch, worker, piece.number, piece.place, True]}
        if now.num_taken < len(now.order):
            return {"take": [epoch, worker, now.order[now.num_taken], None, False]}
        return None

    def give_back(self, worker: int, progress: WorkerProgress | None) -> Event | None:
        """Returns the event that gives back what the worker had not read; None if it gave back before.

        Args:
            worker: The worker, which will not restart under this number.
            progress: Its progress; None: everything that it ever took is read again.
        """
        if worker in self._gone:
            return None
        pieces: list[list[Any]] = []
        for epoch, epoch_pass in sorted(self._passes.items()):
            for turn, piece in enumerate(epoch_pass.taken.get(worker, [])):
                if progress is None or (epoch, turn) >= (progress.epoch, progress.turns):
                    pieces.append([epoch, piece.number, piece.place])
                elif epoch == progress.epoch and turn in progress.places:
                    place = progress.places[turn]
                    pieces.append([epoch, piece.number, piece.place if place is None else place])
        return {"give_back": [worker, pieces]}

    def apply(self, event: Event) -> None:
        """Applies an event to the state."""
        ((kind, content),) = event.items()
        if kind == "found":
            self._groups.append(len(content))
            self.files.extend(content)
        elif kind == "take":
            epoch, worker, number, place, was_returned = content
            now = self._pass(epoch)
            if was_returned:
                now.returned.pop(0)
            else:
                now.num_taken += 1
            now.taken.setdefault(worker, []).append(FileRemainder(number, place))
        elif kind == "give_back":
            worker, pieces = content
            self._gone.add(worker)
            for epoch, number, place in pieces:
                self._pass(epoch).returned.append(FileRemainder(number, place))
        else:
            raise ValueError(f"unknown event {kind!r} of a file queue")

    def _pass(self, epoch: int) -> _Pass:
        now = self._passes.setdefault(epoch, _Pass())
        begin = len(now.order)
        for group in range(now.num_groups, len(self._groups)):
            size = self._groups[group]
            places = range(size) if self._seed is None else permutation(size, self._seed, epoch, group).tolist()
            now.order.extend(begin + place for place in places)
            begin += size
        now.num_groups = len(self._groups)
        return now


def event_line(event: Event) -> bytes:
    """Returns an event as a line, with its end."""
    content = json.dumps(event, sort_keys=True, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def event_of(line: bytes, *, log: object, offset: int) -> Any:
    """Parses the event of a line; `log` and `offset` are its place in messages.

    Raises:
        DataLossError: the line is damaged.
    """
    checksum, _, content = line.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(content):
        raise DataLossError(f"file queue '{log}': offset {offset}: damaged, the checksum is wrong")
    return json.loads(content)
