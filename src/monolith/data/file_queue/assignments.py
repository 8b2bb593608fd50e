"""Assignment of files to workers on demand: the state of a `FileQueue`, without its I/O.

Two queues, as in ByteDance Monolith: patterns that were not expanded yet, and files that were not taken yet; the second
is filled from the first on demand. The state is a function of a list of events, so only a log of events must be stored.
Every file that a worker took has a turn; requesting the turn again returns the same file. In a log, an event is a line:
the CRC-32 of the event in hexadecimal, a space, and the event in JSON.

`FileAssignments` is this state in every process that has it: of `LocalFileQueue`, of a single process or one rank of a
run, and at the coordinator of a job, which `RemoteAssignments` of `monolith.job` calls.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from monolith.data.pipeline.draws import permutation
from monolith.data.sources.file_set import FilePart
from monolith.errors import DataLossError, FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


@dataclass(frozen=True, slots=True)
class LookUp:
    """The worker is to list the files of a pattern first, and report them."""

    number: int | None
    """Number of the pattern; None: all were listed, and there is no file."""


class Assignments(Protocol):
    """What a queue calls on its state: `FileAssignments`, or one at the coordinator of a job."""

    def take(self, worker: int, turn: int, epoch: int) -> FilePart | LookUp | None:
        """Returns the file of a worker's turn; None: there are no more.

        Raises:
            FailedPreconditionError: the worker gave back its files, or the turn is beyond its next one.
        """

    def require_taken(self, worker: int, turns: int, epoch: int) -> None:
        """Refuses to resume after more turns than the worker had.

        Raises:
            FailedPreconditionError: the worker gave back its files, or had fewer turns.
        """

    def found(self, look_up: int, files: Sequence[str]) -> None:
        """Adds the files that a worker has listed; ignores all but the first report of a pattern."""

    def give_back(self, worker: int, progress: WorkerProgress | None) -> int:
        """Returns what the worker had not read to the queue, and how many files and parts; 0 if it did so before.

        Args:
            worker: The worker, which will not restart under this number.
            progress: Its progress; None: everything that it ever took is read again.
        """


class FileAssignments(Assignments):
    """The state of a queue. Not thread-safe.

    Args:
        digest: Digest of the patterns and the seed.
        num_look_ups: Times that files are looked up, by one pattern after another.
        seed: Shuffles the files of each look-up, differently in each epoch; None keeps them sorted.
    """

    def __init__(self, *, digest: str, num_look_ups: int, seed: int | None) -> None:
        self.facts: dict[str, Any] = {"digest": digest, "num_look_ups": num_look_ups, "seed": seed}
        """Properties that identify the queue, as in logs and saved states."""
        self.events: list[Event] = []
        """All events so far."""
        self.keep: Callable[[Event], None] = lambda _: None
        """Called with an event before it takes effect: stores it where a restart finds it. Raises if it cannot."""
        self._num_look_ups = num_look_ups
        self._seed = seed
        self._files: list[str] = []
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

    def take(self, worker: int, turn: int, epoch: int) -> FilePart | LookUp | None:
        """Returns the file of a worker's turn; None: there are no more."""
        self.require_taken(worker, turn, epoch)
        now = self._pass(epoch)
        if turn == len(now.taken.get(worker, [])):
            if now.returned:
                piece = now.returned[0]
                self._happen({"take": [epoch, worker, piece.number, piece.place, True]})
            elif now.num_taken < len(now.order):
                self._happen({"take": [epoch, worker, now.order[now.num_taken], None, False]})
            elif len(self._groups) < self._num_look_ups:
                return LookUp(len(self._groups))
            else:
                return None if self._files else LookUp(None)
        piece = now.taken[worker][turn]
        return FilePart(self._files[piece.number], piece.place)

    def require_taken(self, worker: int, turns: int, epoch: int) -> None:
        """Refuses to resume after more turns than the worker had."""
        if worker in self._gone:
            raise FailedPreconditionError(
                f"worker {worker} of a file queue gave back its files, which others read by now; start it under a "
                "number that was not used yet"
            )
        taken = len(self._pass(epoch).taken.get(worker, []))
        if turns > taken:
            raise FailedPreconditionError(
                f"worker {worker} of a file queue resumes after {turns} files, but the queue assigned it {taken}: the "
                "state of the queue is older than the position; restore the state saved with it, or a later one"
            )

    def found(self, look_up: int, files: Sequence[str]) -> None:
        """Adds the files that a worker has listed, without those that were found before."""
        if look_up == len(self._groups) < self._num_look_ups:
            self._happen({"found": sorted(set(files) - set(self._files))})

    def give_back(self, worker: int, progress: WorkerProgress | None) -> int:
        """Returns what the worker had not read to the queue, and how many files and parts."""
        if worker in self._gone:
            return 0
        pieces: list[list[Any]] = []
        for epoch, epoch_pass in sorted(self._passes.items()):
            for turn, piece in enumerate(epoch_pass.taken.get(worker, [])):
                if progress is None or (epoch, turn) >= (progress.epoch, progress.turns):
                    pieces.append([epoch, piece.number, piece.place])
                elif epoch == progress.epoch and turn in progress.places:
                    place = progress.places[turn]
                    pieces.append([epoch, piece.number, piece.place if place is None else place])
        self._happen({"give_back": [worker, pieces]})
        return len(pieces)

    def replay(self, events: Sequence[Event]) -> None:
        """Applies events that are stored already."""
        for event in events:
            self._apply(event)
            self.events.append(event)

    def _happen(self, event: Event) -> None:
        self.keep(event)
        self.replay([event])

    def _apply(self, event: Event) -> None:
        ((kind, content),) = event.items()
        if kind == "found":
            self._groups.append(len(content))
            self._files.extend(content)
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
