"""Tables of vocabularies: which features read which tables, and which ids of a feature go there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from torch import Tensor

from monolith.errors import InvalidArgumentError
from monolith.nn import Slice, Slot
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tpu.feature_columns import Env
    from monolith.tpu.vocabulary import Vocabulary

__all__ = [
    "QR_COLLISION_RATE",
    "QR_THRESHOLD",
    "QuotientRemainder",
    "TableFeature",
    "VocabularyTable",
    "ids_in_vocabulary",
    "looked_up_as",
    "make_configs",
    "slots_of",
]

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
        """Rows of the table ``_0``."""
        return self.vocabulary_size // self.collision_rate + 1

    @property
    def quotient_size(self) -> int:
        """Rows of the table ``_1``."""
        return self.collision_rate + 1

    def split(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Remainders and quotients."""
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
    """Ids from 0 to size - 1: those below 0 become 0, the others are taken modulo the size."""
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
