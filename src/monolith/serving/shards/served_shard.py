"""Starts one shard of a model: loads the rows of its buckets, follows the log, and serves."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monolith.closing import Closing
from monolith.deltalog import DeltaLog
from monolith.deltalog.follow import Staleness, schemas_of
from monolith.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from monolith.export import open_export, versions_in
from monolith.files import join
from monolith.online import Follower
from monolith.serving.loaded_model import OWN_WEIGHTS, has_base_of_all, sparse_version
from monolith.serving.served_model import ModelVersion, ShownModel, lag_reason, why_stale
from monolith.serving.shards.replicas import ShardNumber
from monolith.serving.shards.shard_server import GRACE_SECONDS, ShardServer
from monolith.serving.shards.shard_tables import HeldRows, ShardTables
from monolith.serving.version_watch import VersionWatch
from monolith.tables import Schema, ServingRows, TableConfig, serving_tables
from monolith.tables.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping


_NEED_RANGES = ("fixed_r8", "one_bit")
"""Compressors whose rows cannot be decoded without their range, which is not part of a schema."""


def readable_tables(schema: Schema, *, store: str, skip_zero: bool = False) -> dict[str, TableConfig]:
    """Returns configs of serving tables for the rows of a schema."""
    for table in schema.tables:
        for segment in table.segments:
            if segment.compressor in _NEED_RANGES:
                raise UnimplementedError(
                    f"store {store!r}, table {table.name!r}: rows of {segment.compressor} cannot be read by their"
                    " schema alone; give the configs of the tables"
                )
    return {name: replace(table, skip_zero=skip_zero) for name, table in serving_tables(schema).items()}


class ServedShard(ShownModel, Closing):
    """A running shard that follows a log. A context manager."""

    def __init__(
        self, server: ShardServer, rows: HeldRows, follower: Follower | None, watch: VersionWatch[int] | None = None
    ) -> None:
        self.server = server
        self.follower = follower
        self._rows = rows
        self._watch = watch

    @property
    def stores(self) -> Mapping[str, ServingRows]:
        """Tables of the newest version."""
        return self._rows.newest.tables.stores

    @property
    def version(self) -> ModelVersion:
        """Minimum version of the next answer."""
        return ModelVersion(self._rows.newest.version, OWN_WEIGHTS, sparse_version(self.follower))

    @property
    def why_not_ready(self) -> str | None:
        """Reason as a sentence; None: ready."""
        return self.server.why_not_ready()

    @property
    def problem(self) -> str | None:
        """Why a newer export is not served; None: no problem."""
        return None if self._watch is None else self._watch.problem

    @property
    def staleness(self) -> Staleness | None:
        """Seconds from events to their rows here; None: no log is followed, or there was no event yet."""
        return None if self.follower is None else self.follower.staleness

    @property
    def num_rows(self) -> int:
        """Number of rows of all tables."""
        return self._rows.newest.tables.num_rows

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""
        return sum(store.stats().memory_bytes for store in self.stores.values())

    def close(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Stops serving, then following. Requests in flight have `grace_seconds` to complete."""
        with ExitStack() as closing:
            if self.follower is not None:
                closing.callback(self.follower.close)
            if self._watch is not None:
                closing.callback(self._watch.close)
            self.server.close(grace_seconds)


def serve_shard(
    model: str,
    shard: ShardNumber | str,
    *,
    export: str | None = None,
    follow: DeltaLog | str | None = None,
    tables: Mapping[str, Mapping[str, TableConfig]] | None = None,
    skip_zero: bool = True,
    catch_up: bool = True,
    **server_options: Any,
) -> ServedShard:
    """Starts a shard, and returns once its rows are loaded: those of a log, or none if rows are pushed to it.

    Args:
        model: Name of the model; the shard is called ``<model>:ps_<i>`` in requests.
        shard: Number of the shard, such as ``0/3``.
        export: An export written for shards: the rows of ``ps_<i>`` are loaded. Its tables are those of the shard.
            Without a log, a newer version is served in addition to the previous one, by request.
        follow: Log of its rows: only those of its buckets are read and kept. None: rows are pushed.
        tables: Store -> configs of its serving tables; None: from the schema of the log.
        skip_zero: Whether to drop zero rows, such as removed ids that are pushed as zeros. For tables from the schema
            of the log.
        catch_up: Whether to return only when the shard is up to date with the log. False: return immediately; the shard
            is not ready until then, and the log may be created later.
        server_options: Keyword arguments of `ShardServer`: `host`, `port`, `credentials`, `threads`; `version`, of the
            rows without an export; and `max_staleness_seconds`: the shard is not ready while its newest event is older.

    Raises:
        InvalidArgumentError: neither a log nor tables were given.
        OpError: the log is unreachable, belongs to another model, or has no base to start at.
    """
    number = ShardNumber.parse(shard) if isinstance(shard, str) else shard
    log = DeltaLog(follow) if isinstance(follow, str) else follow
    version = int(server_options.pop("version", 0))
    max_staleness_seconds: float | None = server_options.pop("max_staleness_seconds", None)
    exports = None if export is None else ShardExports(export, number)
    if exports is not None:
        version, stores = exports.newest(with_rows=log is None or not has_base_of_all(log, exports.store_names()))
    else:
        stores = _new_stores(log, tables, skip_zero=skip_zero)
    own = ShardTables(stores, buckets=number.buckets, takes_rows=log is None)
    rows = HeldRows(own, version=version, is_live=log is not None or version == 0)
    with ExitStack() as undoing:
        follower = None
        if log is not None:
            follower = Follower(stores, log, buckets=number.buckets)
            undoing.callback(follower.close)
            if catch_up:
                follower.catch_up()
            follower.start()
        watch = None
        if log is None and exports is not None:
            watch = watch_exports(exports, rows)
            undoing.callback(watch.close)
        server = ShardServer(
            rows,
            model=model,
            index=number.index,
            sparse=lambda: sparse_version(follower),
            why_not_ready=lambda: (
                lag_reason(follower) or why_stale(follower.staleness if follower else None, max_staleness_seconds)
            ),
            **server_options,
        )
        server.start()
        undoing.pop_all()
    return ServedShard(server, rows, follower, watch)


def _new_stores(
    log: DeltaLog | None, tables: Mapping[str, Mapping[str, TableConfig]] | None, *, skip_zero: bool
) -> dict[str, ServingRows]:
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


class ShardExports:
    """Exports of a shard, below ``ps_<i>`` of a path. Thread-safe."""

    def __init__(self, path: str, number: ShardNumber) -> None:
        self._path = path
        self._place = join(path, f"ps_{number.index}")
        self.number = number

    def newest_number(self) -> int:
        """Returns the number of the newest complete version; -1 if there is none."""
        return max(versions_in(self._place), default=-1)

    def store_names(self) -> list[str]:
        """Returns the names of the stores of the newest version."""
        return list(open_export(self._place).manifest.stores)

    def newest(self, *, with_rows: bool = True) -> tuple[int, dict[str, ServingRows]]:
        """Loads the tables of the newest version; returns its number and its stores.

        Raises:
            NotFoundError: there is no version.
            FailedPreconditionError: the export is for another number of shards.
            OpError: the export cannot be read.
        """
        opened = open_export(self._place)
        if opened.manifest.shards != self.number.count:
            raise FailedPreconditionError(
                f"export '{self._path}': it is for {opened.manifest.shards} shards, and this is one of"
                f" {self.number.count}"
            )
        stores = opened.new_stores()
        if with_rows:
            opened.load_rows(stores)
        return opened.manifest.version, stores


def watch_exports(exports: ShardExports, rows: HeldRows) -> VersionWatch[int]:
    """Returns a watch that adds newer versions to the rows of a shard, until it is closed."""

    def newer() -> int | None:
        newest = exports.newest_number()
        return newest if newest > rows.newest.version else None

    def add(_: int) -> None:
        version, stores = exports.newest()
        if not watch.is_given_up:
            rows.add(version, ShardTables(stores, buckets=exports.number.buckets))

    watch = VersionWatch("shard", next_version=newer, activate=add)
    watch.start()
    return watch
