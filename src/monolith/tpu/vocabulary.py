"""Vocabularies: number of ids of each slot, from a file of lines ``slot<TAB>count``, and the tables that keep them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import fsspec
from torch import Tensor

from monolith.errors import InvalidArgumentError
from monolith.files import named_errors
from monolith.nn import Slice, Slot
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monolith.tpu.feature_columns import Env

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
        """Ids of a slot."""
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

    >>> parse_vocabulary(["slot\tcount", "200\t1000", "201\t5"], source="vocab.tsv")
    {200: 1000, 201: 5}
    """
    counts: dict[int, int] = {}
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
        if int(slot) in counts:
            raise InvalidArgumentError(
                f"vocabulary file '{source}', line {number}: slot {slot} stands there a second time"
            )
        counts[int(slot)] = int(count)
    if not counts:
        raise InvalidArgumentError(f"vocabulary file '{source}': expected lines slot<TAB>count, got none")
    return counts


def find_vocabulary_file(path: str | None, *, folder_prefix: str | None, end_date: str | None) -> str:
    """Returns the file of the last day of the data if a folder by days is given and has one, else the given file.

    Args:
        path: The given file.
        folder_prefix: Prefix of the day in the names of folders, on any file system of fsspec.
        end_date: The day.
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


QR_THRESHOLD: Final = 100_000_000
"""A larger vocabulary is divided into two tables."""
QR_COLLISION_RATE: Final = 4


@dataclass(frozen=True, slots=True)
class QuotientRemainder:
    """Division of a large vocabulary into two small ones; each pair of ids is unique."""

    vocabulary_size: int
    collision_rate: int = QR_COLLISION_RATE

    @property
    def remainder_size(self) -> int:
        """Returns the number of rows of the table ``_0``."""
        return self.vocabulary_size // self.collision_rate + 1

    @property
    def quotient_size(self) -> int:
        """Returns the number of rows of the table ``_1``."""
        return self.collision_rate + 1

    def split(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns remainders and quotients of ids."""
        return ids % self.remainder_size, ids.div(self.remainder_size, rounding_mode="floor")


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyTable:
    """A table of a vocabulary."""

    vocabulary_size: int
    part: Slice
    """Its dim, initializer and optimizer."""
    combiner: Literal["sum"] = "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFeature:
    """The table and ids that a feature reads."""

    table: str
    column: str
    """The column of the data that has the ids."""
    vocabulary_size: int
    """Vocabulary size of the slot: ids are taken modulo this."""
    half: int | None = None
    """0: it reads the remainders of its ids, 1: the quotients; None: the ids."""
    collision_rate: int = QR_COLLISION_RATE

    def ids(self, column: Ragged) -> Ragged:
        """Returns the ids that it looks up."""
        if not isinstance(column.values, Tensor):
            raise InvalidArgumentError(f"column {self.column!r}: lists of ids expected, got lists of lists")
        inside = ids_in_vocabulary(column.values, self.vocabulary_size)
        if self.half is not None:
            inside = QuotientRemainder(self.vocabulary_size, self.collision_rate).split(inside)[self.half]
        return Ragged(inside, column.row_splits)


def ids_in_vocabulary(ids: Tensor, size: int) -> Tensor:
    """Returns ids from 0 to size - 1: those below 0 become 0, the others are taken modulo the size."""
    return ids.clamp(min=0) % size


def make_configs(
    env: Env, vocabulary: Vocabulary, *, threshold: int | None, collision_rate: int
) -> tuple[dict[str, TableFeature], dict[str, VocabularyTable]]:
    """Returns feature -> what it reads, and table -> its definition.

    A feature is ``<column>_<slice>``, a table ``table_<slot>_<slice>``. Where the vocabulary of a slot is larger
    than the threshold both come twice: with ``_0`` for the remainders, and with ``_1`` for the quotients.

    Args:
        env: The slots.
        vocabulary: Number of their ids.
        threshold: Larger vocabularies are divided; None: no division.
        collision_rate: Number of ids that share a remainder.
    """
    features: dict[str, TableFeature] = {}
    tables: dict[str, VocabularyTable] = {}
    for slot in env.slots.values():
        if not slot.columns:
            continue
        size = vocabulary.size(slot.number)
        is_divided = threshold is not None and size > threshold
        pair = QuotientRemainder(size, collision_rate)
        halves = {0: pair.remainder_size, 1: pair.quotient_size} if is_divided else {None: size}
        for index, part in enumerate(slot.slices):
            for half, rows in halves.items():
                ending = f"_{index}" if half is None else f"_{index}_{half}"
                tables[f"table_{slot.number}{ending}"] = VocabularyTable(vocabulary_size=rows, part=part)
                for column in slot.columns:
                    features[f"{column}{ending}"] = TableFeature(
                        table=f"table_{slot.number}{ending}",
                        column=column,
                        vocabulary_size=size,
                        half=half,
                        collision_rate=collision_rate,
                    )
    return features, tables


def slots_of(features: Mapping[str, TableFeature], tables: Mapping[str, VocabularyTable]) -> dict[str, Slot]:
    """Returns the slots of `Embeddings`: one named by each table for its first feature, and one per further feature."""
    slots: dict[str, Slot] = {}
    for name, feature in features.items():
        table = tables[feature.table]
        if feature.table in slots:
            slots[name] = Slot(shares=feature.table, combiner=table.combiner)
        else:
            slots[feature.table] = Slot(slices=[table.part], combiner=table.combiner)
    return slots


def looked_up_as(features: Mapping[str, TableFeature]) -> dict[str, str]:
    """Returns feature -> the slot of `Embeddings` under which it is looked up, see `slots_of`."""
    owners: dict[str, str] = {}
    for name, feature in features.items():
        owners.setdefault(feature.table, name)
    return {name: feature.table if owners[feature.table] == name else name for name, feature in features.items()}
