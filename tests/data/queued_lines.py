"""Files of lines that need not exist, for tests of who reads which file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from monolith.data import FileQueue, QueuedFiles
from monolith.data.sources.file_dataset import FileDataset

FILES = [f"f{number}:{number % 4}" for number in range(9)]
ACTIONS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["read", "read", "read", "save", "crash"])), max_size=60
)
"""What three workers do, one after another."""


class _OpenLines:
    def __init__(self, lines: list[str], begin: int) -> None:
        self.lines, self.place = lines, begin

    def __next__(self) -> str:
        if self.place == len(self.lines):
            raise StopIteration
        self.place += 1
        return self.lines[self.place - 1]

    def close(self) -> None:
        pass


class Lines(FileDataset[str]):
    """Files named by how many lines they have, of which none need exist: ``"<name>:<lines>"``."""

    def open_file(self, path: str, place: Any) -> _OpenLines:
        name, _, count = Path(path).name.partition(":")
        return _OpenLines([f"{name}/{line}" for line in range(int(count))], place or 0)


def lines_of(files: list[str]) -> list[str]:
    return sorted(f"{name}/{line}" for name, count in (each.split(":") for each in files) for line in range(int(count)))


def worker(queue: FileQueue, number: int, cycle_length: int = 1) -> Lines:
    """What a worker reads."""
    return Lines(QueuedFiles(queue, worker=number), cycle_length=cycle_length)


class Workers:
    """Three that read `FILES` from one queue, save where they are, and go back to that.

    Args:
        queues: The queue as each of them sees it.
        cycle_length: Files that each reads at a time.
    """

    def __init__(self, queues: Sequence[FileQueue], cycle_length: int) -> None:
        self.queues, self.cycle_length = queues, cycle_length
        self.readings = [worker(queue, number, cycle_length).read() for number, queue in enumerate(queues)]
        self.done: list[list[str]] = [[] for _ in queues]
        """The lines of each that count."""
        self.saved: list[tuple[bytes | None, int]] = [(None, 0)] * len(queues)
        """Its position, and how many of its lines are before it."""

    def act(self, number: int, action: str) -> None:
        """One of the actions."""
        if action == "read":
            self.done[number] += [line for line in [next(self.readings[number], None)] if line is not None]
        elif action == "save":
            self.saved[number] = (self.readings[number].position, len(self.done[number]))
        else:
            position = self.forget_unsaved(number)
            self.readings[number] = worker(self.queues[number], number, self.cycle_length).read(position)

    def forget_unsaved(self, number: int) -> bytes | None:
        """Its saved position, behind which nothing counts."""
        position, count = self.saved[number]
        del self.done[number][count:]
        return position

    def read_to_the_end(self) -> None:
        """All of them."""
        for number in (1, 2, 0):
            self.done[number] += self.readings[number]
            assert next(self.readings[number], None) is None

    def require_each_line_once(self) -> None:
        """Whoever has read it."""
        assert sorted(chain(*self.done)) == lines_of(FILES)
