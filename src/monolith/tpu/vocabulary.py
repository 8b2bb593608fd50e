"""Number of ids of each slot, from a file of lines ``slot<TAB>count``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fsspec

from monolith.errors import InvalidArgumentError
from monolith.files import named_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Vocabulary", "find_vocabulary_file", "parse_vocabulary", "read_vocabulary"]

_log = logging.getLogger(__name__)

_TOO_MANY_IDS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The sizes of a run: those of the file, or what the task's parameters put in their place."""

    counts: Mapping[int, int]
    """Slot -> ids, of the file."""
    source: str
    """Source of the vocabulary, for messages."""
    per_slot: int | None = None
    """Number of ids of every slot, for quick experiments."""
    custom: Mapping[int, int] | None = None
    """Slot -> ids, for some of them."""
    offset: int = 0
    """Added to each."""

    def size(self, slot: int) -> int:
        """Ids of a slot.

        Raises:
            InvalidArgumentError: the file does not have the slot, or nothing is left of its size.
        """
        if slot not in self.counts:
            raise InvalidArgumentError(
                f"vocabulary: slot {slot} is not in {self.source}, whose slots are {_some(self.counts)}; add a line"
                f" '{slot}<TAB>count'"
            )
        size = (self.custom or {}).get(slot, self.counts[slot]) if self.per_slot is None else self.per_slot
        if size + self.offset < 1:
            raise InvalidArgumentError(
                f"vocabulary: slot {slot} must have at least one id, got {size} with an offset of {self.offset}"
            )
        return size + self.offset


def read_vocabulary(path: str) -> dict[int, int]:
    """Returns slot -> number of ids, from a local file or an fsspec URL.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: a malformed line; names it.
    """
    with named_errors(path, "read"), fsspec.open(path, "rb") as file:
        data: bytes = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"vocabulary file '{path}': text in UTF-8 expected, got {error}") from error
    return parse_vocabulary(text.splitlines(), source=path)


def parse_vocabulary(lines: Iterable[str], *, source: str) -> dict[int, int]:
    r"""Returns slot -> number of ids; skips empty lines and those whose first field is not a number.

    Raises:
        InvalidArgumentError: a line does not have two fields, has a count below 1, or repeats a slot; names it.

    >>> parse_vocabulary(["slot\tcount", "200\t1000", "201\t5"], source="vocab.tsv")
    {200: 1000, 201: 5}
    """
    found: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = line.strip().split("\t")
        if len(fields) != 2:
            raise InvalidArgumentError(
                f"vocabulary file '{source}', line {number}: expected slot<TAB>count, got {line.strip()[:80]!r}"
            )
        slot, count = fields
        if not (slot.isascii() and slot.isdigit()):
            continue
        if not (count.isascii() and count.isdigit()) or not 0 < int(count) <= _TOO_MANY_IDS:
            raise InvalidArgumentError(
                f"vocabulary file '{source}', line {number}: slot {slot} must have a count above 0, got {count[:80]!r}"
            )
        if int(slot) in found:
            raise InvalidArgumentError(
                f"vocabulary file '{source}', line {number}: slot {slot} stands there a second time"
            )
        found[int(slot)] = int(count)
    if not found:
        raise InvalidArgumentError(f"vocabulary file '{source}': expected lines slot<TAB>count, got none")
    return found


def find_vocabulary_file(path: str | None, *, folder_prefix: str | None, end_date: str | None) -> str:
    """Returns the file of the last day of the data if a folder by days is given and has one, else the given file.

    Args:
        path: The given file.
        folder_prefix: Prefix of the day in the names of folders, on any file system of fsspec.
        end_date: The day.

    Raises:
        InvalidArgumentError: neither is named.
    """
    if folder_prefix is not None and end_date is not None:
        pattern = f"{folder_prefix}{end_date}/part*.csv"
        files, inside = fsspec.core.url_to_fs(pattern)
        matches = [str(files.unstrip_protocol(match)) for match in files.glob(inside)]
        if len(matches) == 1:
            return matches[0]
        _log.warning("vocabulary: one file %r expected, got %d; '%s' is used", pattern, len(matches), path)
    if path is None:
        raise InvalidArgumentError(
            "vocabulary: give vocab_file_path, or train.vocab_file_folder_prefix and train.end_date with a file"
            " part*.csv in that folder"
        )
    return path


def _some(counts: Mapping[int, int]) -> str:
    shown = ", ".join(map(str, sorted(counts)[:10]))
    return shown if len(counts) <= 10 else f"{shown} and {len(counts) - 10} more"
