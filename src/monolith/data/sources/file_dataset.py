"""Files read in turns: what the datasets of all file formats share."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from monolith.data.dataset import Dataset
from monolith.data.pipeline.counts import whole_number
from monolith.data.position import SavedPosition, encode_position
from monolith.data.reading import Reading
from monolith.data.sources.file_set import FileSet
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

__all__ = ["FileDataset", "OpenFile"]

_KIND = "files"


class OpenFile(Protocol[T_co]):
    """One file that is being read."""

    def __next__(self) -> T_co:
        """The next block of it; StopIteration at its end."""

    @property
    def place(self) -> Any:
        """Where to go on behind the block that was returned last, as JSON."""

    def close(self) -> None:
        """Closes the file."""


class FileDataset(Dataset[T]):
    """Blocks of files, one block of each of `cycle_length` files in turn; a file that ends makes room for the next.

    Args:
        files: Which, or a `FileSet`, which also says whose and in which order.
        cycle_length: Files that are read at a time.
    """

    def __init__(
        self, files: FileSet | str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, cycle_length: int = 1
    ) -> None:
        self.files = files if isinstance(files, FileSet) else FileSet(files)
        self._cycle_length = whole_number("cycle_length", cycle_length, at_least=1)
        self._epoch = 0

    def for_epoch(self, epoch: int) -> FileDataset[T]:
        """The same files, in the order of this epoch if they are shuffled."""
        other = copy(self)
        other._epoch = epoch  # noqa: SLF001 - a copy of this one
        return other

    def read(self, position: bytes | None = None) -> Reading[T]:
        """The position is how far each open file was read, and which is the next to open."""
        order = self.files.order(self._epoch)
        reading = _FilesReading(self.open_file, order, self._cycle_length, self.files.digest(self._epoch))
        if position is not None:
            reading.go_to(position)
        return reading

    @abstractmethod
    def open_file(self, path: str, place: Any) -> OpenFile[T]:
        """Begins to read a file, at its start if `place` is None."""


class _FilesReading(Reading[T], Generic[T]):
    """Slots hold files: [number in the order, place to go on from, the file once it is open]."""

    def __init__(
        self, open_file: Callable[[str, Any], OpenFile[T]], order: list[str], cycle_length: int, digest: str
    ) -> None:
        self._open_file = open_file
        self._order = order
        self._digest = digest
        self._cycle_length = cycle_length
        self._slots: list[_Slot[T]] = []
        self._next_file = 0
        self._turn = 0

    @property
    def position(self) -> bytes:
        fields = {
            "cycle_length": self._cycle_length,
            "digest": self._digest,
            "next_file": self._next_file,
            "num_files": len(self._order),
            "open": [[slot.number, slot.place] for slot in self._slots],
            "turn": self._turn,
        }
        return encode_position(_KIND, fields)

    def go_to(self, position: bytes) -> None:
        """Takes up a position that was saved."""
        saved = SavedPosition(position, _KIND)
        saved.require_same(num_files=len(self._order), digest=self._digest, cycle_length=self._cycle_length)
        self._next_file, self._turn = saved.number("next_file"), saved.number("turn")
        try:
            self._slots = [_Slot(int(number), place) for number, place in saved.values("open")]
            [self._order[slot.number] for slot in self._slots]
        except (TypeError, ValueError, IndexError) as error:
            raise InvalidArgumentError(f"position for a dataset of kind {_KIND!r}: {error}") from error

    def __next__(self) -> T:
        while True:
            while len(self._slots) < self._cycle_length and self._next_file < len(self._order):
                self._slots.append(_Slot(self._take_file(), None))
            if not self._slots:
                raise StopIteration
            self._turn %= len(self._slots)  # the last of the cycle may have ended
            slot = self._slots[self._turn]
            try:
                block = slot.read(self._open_file, self._order)
            except StopIteration:
                self._end(slot)
                continue
            self._turn = (self._turn + 1) % len(self._slots)
            return block

    def close(self) -> None:
        """Closes the files that are open."""
        slots, self._slots, self._next_file = self._slots, [], len(self._order)
        for slot in slots:
            slot.close()

    def _take_file(self) -> int:
        self._next_file += 1
        return self._next_file - 1

    def _end(self, slot: _Slot[T]) -> None:
        slot.close()
        if self._next_file < len(self._order):
            self._slots[self._turn] = _Slot(self._take_file(), None)
        else:
            del self._slots[self._turn]


class _Slot(Generic[T]):
    """A file of the cycle, opened when its turn comes first."""

    def __init__(self, number: int, place: Any) -> None:
        self.number = number
        self._start = place
        self._file: OpenFile[T] | None = None

    @property
    def place(self) -> Any:
        """Where to go on behind the block that was read last."""
        return self._start if self._file is None else self._file.place

    def read(self, open_file: Callable[[str, Any], OpenFile[T]], order: list[str]) -> T:
        if self._file is None:
            self._file = open_file(order[self.number], self._start)
        return next(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
