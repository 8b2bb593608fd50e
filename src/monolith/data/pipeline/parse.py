"""`Dataset.parse`: a batch of each block of records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monolith.data.batch import Batch
    from monolith.data.records.records import Records

__all__ = ["Parsing", "RecordParser"]


class RecordParser(Protocol):
    """Makes batches of records: a `Parser`, a `JsonParser`, or a custom class."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""

    def parse(self, records: Records) -> Batch:
        """Returns the batch of these records, without those that are bad."""


class Parsing:
    """A function for `Map` that parses records; a block in which no record is good is dropped."""

    def __init__(self, parser: RecordParser) -> None:
        self._parser = parser

    def __call__(self, records: Records) -> Batch | None:
        """Returns the batch of a block."""
        batch = self._parser.parse(records)
        return batch if batch.num_rows else None

    def __repr__(self) -> str:
        return f"parse({', '.join(self._parser.names)})"
