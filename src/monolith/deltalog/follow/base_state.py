"""Reads a base of a delta log: tables and dense weights, from a folder of snapshots or from a checkpoint."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING

import fsspec

from monolith.checkpoint.inspection import SavedState
from monolith.checkpoint.tensor_bytes import tensors_from_bytes, tensors_to_bytes
from monolith.deltalog import store_of
from monolith.deltalog.follow.row_takeover import take_over_rows
from monolith.deltalog.publish.serving_schema import serving_schema
from monolith.errors import NotFoundError
from monolith.files import join, named_errors
from monolith.tables.history import ALL_BUCKETS, shared_buckets
from monolith.tables.schema import Schema, TableSchema
from monolith.tables.snapshot.bucket_file import read_blocks
from monolith.tables.snapshot.location import open_source
from monolith.tables.snapshot.restore import restore

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.deltalog import Base
    from monolith.tables.store import Store


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
        found = store_of(part)
        if found is not None:
            name, buckets = found
            replace = take_over_rows if store.stats().rows else restore
            replace(store, self._folder(name), buckets=shared_buckets(buckets, own))

    def schema(self, store: str) -> Schema:
        """Returns the schema of the serving rows of a store."""
        with closing(open_source(self._folder(store))) as source:
            tables = (TableSchema.parse(each.name, each.schema) for each in source.manifest.tables)
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
        path = join(self.base.path, self.base.dense)
        with named_errors(path, "read"):
            files, place = fsspec.core.url_to_fs(path)
            data: bytes = files.cat_file(place)
        return data

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
