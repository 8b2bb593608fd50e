"""Files of lines that need not exist, for tests of who reads which file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monolith.data.sources.file_dataset import FileDataset


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
