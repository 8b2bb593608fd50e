"""Reads numbered examples from the growing files of a joiner."""

from __future__ import annotations

import logging
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from monolith.errors import DataLossError
from monolith.files import named_errors, open_if_there
from monolith.online.joiner.examples import NumberedExample, whole_examples
from monolith.online.stream.admission import PARTITION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.online.stream.admission import Reached

_log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_FRAME_BYTES = 8 + 16 + 8
"""Size of a record in addition to request and example."""


class Fetched(NamedTuple):
    """An example and its position."""

    partition: int
    example: NumberedExample
    place: int
    """Position of the example: byte of the file, or offset of the topic."""


class ExampleSource(Protocol):
    """The partitions of a stream. Not thread-safe."""

    name: str
    """Name of the source, for messages."""

    def fetch(self, limit: int, seconds: float) -> Sequence[Fetched]:
        """Returns at most `limit` examples, in the order of each partition; none if none arrived within `seconds`."""

    def behind(self) -> int:
        """Returns the approximate number of bytes or messages not fetched yet."""

    def is_at_end(self) -> bool:
        """Returns whether everything available was fetched; False if unknown."""

    def close(self) -> None:
        """Closes files and connections."""


class FileExamples:
    """The files of all partitions, read round-robin."""

    def __init__(self, place: str, reached: Sequence[Reached]) -> None:
        self.name = f"stream '{place}'"
        self._files = [
            _GrowingFile(place.replace(PARTITION, f"{number:05d}"), position) for number, position in enumerate(reached)
        ]
        self._turn = 0

    def fetch(self, limit: int, seconds: float) -> Sequence[Fetched]:  # noqa: ARG002 - reading a file never waits
        """Returns what is available now."""
        fetched: list[Fetched] = []
        for _ in self._files:
            number = self._turn
            self._turn = (number + 1) % len(self._files)
            taken = self._files[number].take(limit - len(fetched))
            fetched += [Fetched(number, example, place) for example, place in taken]
            if len(fetched) == limit:
                break
        return fetched

    def behind(self) -> int:
        """Returns the number of unread bytes."""
        return sum(file.behind() for file in self._files)

    def is_at_end(self) -> bool:
        """Returns whether no file had another complete record."""
        return all(file.came_to_end for file in self._files)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()


class _GrowingFile:
    """One file. A missing file counts as empty; one reset to an older state is read from its beginning."""

    def __init__(self, path: str, reached: Reached) -> None:
        self._path = path
        self._offset = reached.place or 0
        self._expected = None if reached.place is None else reached.number
        """Number of the last returned example, expected at the position; None: already found, or there was none."""
        self._descriptor: int | None = None
        self._read_bytes = _CHUNK
        self._waiting: deque[tuple[NumberedExample, int]] = deque()
        self.came_to_end = False

    def take(self, limit: int) -> list[tuple[NumberedExample, int]]:
        if not self._waiting:
            self._read()
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def behind(self) -> int:
        waiting = sum(_size_of(example) for example, _ in self._waiting)
        if self._descriptor is None:
            return waiting
        return waiting + max(0, os.fstat(self._descriptor).st_size - self._offset)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self) -> None:
        if self._descriptor is None:
            self._descriptor = open_if_there(self._path)
        if self._descriptor is None:
            self.came_to_end = True
            return
        descriptor = self._descriptor
        with named_errors(self._path, "read"):
            data = os.pread(descriptor, self._read_bytes, self._offset)
        if not data:
            self.came_to_end = True
            self._look_for_another()
            return
        try:
            examples, end = whole_examples(data)
        except DataLossError as error:
            if self._expected is None:
                raise DataLossError(
                    f"file '{self._path}': from byte {self._offset}: {error.message}; put the file back as the joiner"
                    " wrote it"
                ) from error
            self._begin_anew("holds no example")
            return
        if self._expected is not None and examples and examples[0].number != self._expected:
            self._begin_anew(f"holds example {examples[0].number} instead of {self._expected}")
            return
        self.came_to_end = not examples and len(data) < self._read_bytes
        self._read_bytes = 2 * self._read_bytes if not examples and len(data) == self._read_bytes else _CHUNK
        at = self._offset
        for example in examples:
            if self._expected is None:
                self._waiting.append((example, at))
            self._expected = None
            at += _size_of(example)
        self._offset += end

    def _look_for_another(self) -> None:
        """Restarts a file that was replaced or truncated; numbers identify the examples already read."""
        descriptor = self._descriptor or 0
        try:
            there = Path(self._path).stat()
        except OSError:
            return  # being replaced
        if os.fstat(descriptor).st_size < self._offset or not os.path.samestat(there, os.fstat(descriptor)):
            self._begin_anew("was truncated or replaced")

    def _begin_anew(self, why: str) -> None:
        _log.warning(
            "file '%s': %s at byte %d, the resume position; reading restarts from the beginning, and skips the examples"
            " already trained",
            self._path,
            why,
            self._offset,
        )
        self.close()
        self._offset, self._expected, self.came_to_end = 0, None, False


def _size_of(example: NumberedExample) -> int:
    return _FRAME_BYTES + len(example.request) + len(example.example)
