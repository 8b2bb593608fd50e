"""Starts one shard of a model: loads the rows of its buckets, follows the log, and answers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from monolith.deltalog import DeltaLog
from monolith.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from monolith.export.opened import open_export
from monolith.files import join
from monolith.online import Follower
from monolith.online.log_tables import schemas_of
from monolith.serving.shards.shard_number import ShardNumber
from monolith.serving.shards.shard_server import ShardServer
from monolith.serving.shards.shard_tables import ShardTables
from monolith.tables.local_store import LocalStore
from monolith.tables.serving_tables import serving_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables.schema import Schema
    from monolith.tables.table_config import TableConfig

__all__ = ["ServedShard", "readable_tables", "serve_shard"]

_NEED_RANGES = ("fixed_r8", "one_bit")
"""Compressors whose rows cannot be read without what they were told of their range, which a schema does not say."""


def readable_tables(schema: Schema, *, store: str, skip_zero: bool = False) -> dict[str, TableConfig]:
    """Serving tables for rows of a schema, which can be looked up.

    Raises:
        UnimplementedError: a compressor has a range that the schema does not say.
    """
    for table in schema.tables:
        for segment in table.segments:
            if segment.compressor in _NEED_RANGES:
                raise UnimplementedError(
                    f"store {store!r}, table {table.name!r}: rows of {segment.compressor} cannot be read by their"
                    " schema alone; give the configs of the tables"
                )
    return {name: replace(table, skip_zero=skip_zero) for name, table in serving_tables(schema).items()}


class ServedShard:
    """A shard that follows a log and answers. A context manager."""

    def __init__(self, server: ShardServer, follower: Follower | None, stores: Mapping[str, LocalStore]) -> None:
        self.server = server
        self.follower = follower
        self.stores = stores

    def close(self) -> None:
        """Stops answering, then following."""
        with ExitStack() as closing:
            if self.follower is not None:
                closing.callback(self.follower.close)
            self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_shard(
    model: str,
    shard: ShardNumber | str,
    *,
    export: str | None = None,
    follow: DeltaLog | str | None = None,
    tables: Mapping[str, Mapping[str, TableConfig]] | None = None,
    skip_zero: bool = True,
    **server_options: Any,
) -> ServedShard:
    """Starts a shard, and returns once its rows are there: those of a log, or none where rows are pushed to it.

    Args:
        model: Its name; requests call the shard ``<model>:ps_<i>``.
        shard: Which one, such as ``0/3``.
        export: One that was written for shards: the rows of ``ps_<i>`` are loaded. Its tables are those of the shard.
        follow: The log that brings its rows: only those of its buckets are read and kept. None: rows are pushed.
        tables: Store -> configs of its serving tables; None: as the log describes them.
        skip_zero: Keep no zero rows; a removed id that is pushed as zeros goes. For tables that the log describes.
        server_options: Of `ShardServer`, by name: `host`, `port`, `credentials`, `threads`, `version`.

    Raises:
        InvalidArgumentError: neither a log nor tables were given.
        OpError: the log is away, of another model, or has no base to begin at.
    """
    number = ShardNumber.parse(shard) if isinstance(shard, str) else shard
    log = DeltaLog(follow) if isinstance(follow, str) else follow
    if export is not None:
        stores, version = _exported(export, number)
        server_options.setdefault("version", version)
    else:
        stores = _new_stores(log, tables, skip_zero=skip_zero)
    with ExitStack() as undoing:
        follower = None
        if log is not None:
            follower = Follower(stores, log, buckets=number.buckets)
            undoing.callback(follower.close)
            follower.catch_up()
            follower.start()
        server = ShardServer(
            ShardTables(stores, buckets=number.buckets, takes_rows=follower is None),
            model=model,
            index=number.index,
            sparse=None if follower is None else lambda: follower.version,
            **server_options,
        )
        server.start()
        undoing.pop_all()
    return ServedShard(server, follower, stores)


def _new_stores(
    log: DeltaLog | None, tables: Mapping[str, Mapping[str, TableConfig]] | None, *, skip_zero: bool
) -> dict[str, LocalStore]:
    if tables is None and log is None:
        raise InvalidArgumentError(
            "serve_shard: give an export, a log to follow, or the configs of tables that rows are pushed to"
        )
    if tables is None and log is not None:
        tables = {
            store: readable_tables(schema, store=store, skip_zero=skip_zero)
            for store, schema in schemas_of(log).items()
        }
    return {name: LocalStore(configs) for name, configs in (tables or {}).items()}


def _exported(path: str, number: ShardNumber) -> tuple[dict[str, LocalStore], int]:
    """The tables of a shard with the rows of an export, and its version."""
    opened = open_export(join(path, f"ps_{number.index}"))
    if opened.manifest.shards != number.count:
        raise FailedPreconditionError(
            f"export '{path}': it is for {opened.manifest.shards} shards, and this is one of {number.count}"
        )
    stores = opened.new_stores()
    opened.load_rows(stores)
    return stores, opened.manifest.version
