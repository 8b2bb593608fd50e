"""Serving tables for a delta log without its training code, built from the schema in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.deltalog import IncrementKind, store_of
from monolith.deltalog.follow.base_state import BaseState
from monolith.errors import FailedPreconditionError, NotFoundError
from monolith.tables.local.store import LocalStore
from monolith.tables.schema import Schema
from monolith.tables.serving_tables import serving_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.deltalog import Base, DeltaLog


def schemas_of(log: DeltaLog) -> dict[str, Schema]:
    """Returns store -> schema of its serving rows, from its newest base or from the first opening of the log.

    Raises:
        NotFoundError: the log does not exist.
        FailedPreconditionError: the log has neither, as in a topic whose first messages have expired.
    """
    while True:
        bases = log.bases()
        try:
            return _schemas(log, {store: base for base in bases for store in base.stores})
        except NotFoundError:
            if log.bases() == bases:
                raise
            # Compaction has replaced the base meanwhile.


def _schemas(log: DeltaLog, bases: Mapping[str, Base]) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for part in log.parts():
        place = store_of(part)
        if place is None or place[0] in found:
            continue
        store = place[0]
        found[store] = BaseState(bases[store]).schema(store) if store in bases else _opening_schema(log, part)
    return found


def stores_of_log(log: DeltaLog) -> dict[str, LocalStore]:
    """Creates empty serving tables for every store of a log; rows are kept as they arrive and never expire."""
    return {store: LocalStore(serving_tables(schema)) for store, schema in schemas_of(log).items()}


def _opening_schema(log: DeltaLog, part: str) -> Schema:
    with log.open_reader(part) as reader:
        first = reader.read()
    if first is None or first.kind is not IncrementKind.OPENING or not first.payload:
        raise FailedPreconditionError(
            f"delta log '{log.place}', part {part!r}: it has neither a base nor an opening with the schema of its"
            " rows; add a base, for example by a checkpoint of the run that writes it"
        )
    return Schema.parse(first.payload.decode())
