"""Reads a base of a delta log: tables and dense weights, from a folder of snapshots or from a checkpoint.

Serving tables for a log need no training code: `stores_of_log` makes them from the schema in the log.
"""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from monolith.checkpoint import SavedState, tensors_from_bytes, tensors_to_bytes
from monolith.deltalog import IncrementKind, require_published, store_of
from monolith.deltalog.publish.store_publisher import serving_schema
from monolith.errors import FailedPreconditionError, NotFoundError
from monolith.files import join, open_storage
from monolith.tables import ALL_BUCKETS, ChangePosition, Schema, TableSchema, serving_tables, shared_buckets
from monolith.tables.formats import BlockKind
from monolith.tables.local import LocalStore
from monolith.tables.snapshot import open_source, read_blocks, restore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.deltalog import Base, DeltaLog
    from monolith.tables import Store


class BaseState:
    """Reader of a base. Keeps no file open.

    Every method raises NotFoundError if a file of the base was removed, and DataLossError if one is damaged.
    """

    def __init__(self, base: Base) -> None:
        self.base = base

    def load(self, part: str, store: Store, *, own: range = ALL_BUCKETS) -> None:
        """Replaces the rows of a part by those of the base; an error leaves the store as it was.

        Concurrent readers see each row either before or after the replacement; a row that both states have is never
        missing.

        Args:
            part: A part of rows; for any other part nothing is loaded.
            store: Store that receives the rows.
            own: Buckets that the store keeps; files of others are not read.
        """
        rows = store_of(part)
        if rows is not None:
            name, buckets = rows
            replace = load_rows_of if store.stats().rows else restore
            replace(store, self._folder(name), buckets=shared_buckets(buckets, own))

    def schema(self, store: str) -> Schema:
        """Returns the schema of the serving rows of a store."""
        with closing(open_source(self._folder(store))) as source:
            tables = (TableSchema.parse(table.name, table.schema) for table in source.manifest.tables)
            return serving_schema(Schema(tuple(tables)))

    def dense(self) -> dict[str, Tensor]:
        """Reads the dense weights by name."""
        if self.base.kind == "checkpoint":
            return self._checkpoint.weights()
        return tensors_from_bytes(self.dense_bytes(), origin=f"base {self.base.name!r}")

    def dense_bytes(self) -> bytes:
        """Reads the dense weights as a safetensors file."""
        if self.base.kind == "checkpoint":
            return tensors_to_bytes(self._checkpoint.weights())
        if self.base.dense is None:
            raise NotFoundError(f"base {self.base.name!r}: it has no dense weights")
        folder = open_storage(self.base.path)
        return folder.read(self.base.dense, most_bytes=folder.size(self.base.dense))

    def verify(self) -> None:
        """Reads all files and verifies their checksums."""
        if self.base.kind == "checkpoint":
            self._checkpoint.verify()
            return
        for store in self.base.stores:
            for _ in read_blocks(self._folder(store)):
                pass
        if self.base.dense is not None:
            self.dense()

    @cached_property
    def _checkpoint(self) -> SavedState:
        return SavedState(self.base.path)

    def _folder(self, store: str) -> str:
        if store not in self.base.stores:
            raise NotFoundError(f"base {self.base.name!r}: it has no store {store!r}, but {sorted(self.base.stores)}")
        if self.base.kind == "snapshots":
            return join(self.base.path, self.base.stores[store])
        tables = self._checkpoint.manifest.tables
        if store not in tables:
            raise NotFoundError(f"checkpoint '{self.base.path}': it has no store {store!r}, but {sorted(tables)}")
        return self._checkpoint.folder.place(tables[store].folder)


_READER = "takeover"
_BUCKETS_AT_ONCE = 64
"""Number of buckets whose rows are copied together."""


def load_rows_of(store: Store, folder: str, *, buckets: range) -> None:
    """Updates the serving rows of buckets to the values of a snapshot, row by row, and removes rows not in it.

    `restore` empties the buckets first, so that concurrent readers miss rows; here they see each row with its old or
    its new value. Meanwhile the rows of the snapshot are in memory twice. An error leaves the store unchanged.

    Args:
        store: Serving tables.
        folder: Folder of the snapshot.
        buckets: Consecutive buckets.

    Raises:
        OpError: as for `restore`.
    """
    with closing(LocalStore(serving_tables(serving_schema(store.schema)))) as copy:
        restore(copy, folder, buckets=buckets)
        now = copy.open_reader(_READER).mark
        reader = copy.open_reader(_READER, at=ChangePosition(now.generation, now.life, 0))  # all rows count as changed
        _touch_all(copy, store, buckets)  # the open reader records the removals
        for begin in range(buckets.start, buckets.stop, _BUCKETS_AT_ONCE):
            some = range(begin, min(begin + _BUCKETS_AT_ONCE, buckets.stop))
            store.load(reader.packed_changes(state=False, buckets=some), buckets=some, replace=False)


def _touch_all(copy: LocalStore, store: Store, buckets: range) -> None:
    """Marks the ids of a store as changed in its copy, so that ids missing there are reported as removed."""
    names = store.schema.names
    with store.cut() as cut:
        for block in cut.blocks(buckets, state=False):
            if block.kind is BlockKind.SERVING:
                numbers = torch.full((block.count,), block.bucket, dtype=torch.int16)
                copy.touch(names[block.table], torch.from_numpy(block.keys.copy()), buckets=numbers)


def schemas_of(log: DeltaLog) -> dict[str, Schema]:
    """Returns store -> schema of its serving rows, from its newest base or from the first opening of the log.

    Raises:
        NotFoundError: the log does not exist.
        FailedPreconditionError: the log has neither, as in a topic whose first messages have expired, or is a recovery
            record.
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
    schemas: dict[str, Schema] = {}
    for part in log.parts():
        place = store_of(part)
        if place is None or place[0] in schemas:
            continue
        require_published(log.place, part)
        store = place[0]
        schemas[store] = BaseState(bases[store]).schema(store) if store in bases else _opening_schema(log, part)
    return schemas


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
