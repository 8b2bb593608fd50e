"""`ShardTables`: the rows of some buckets of a model, and their signatures.

The signatures are those of a ``ps_<i>`` sub-graph. The T tables are in the order of their names; table t has n_t keys:

    lookup              <table> [n_t] int64                          -> <table> [n_t, dim_t] float
    raw_lookup          id [N], id_split [T + 1]                     -> flat_emb [sum of n_t * dim_t]
    hashtable_assign    <table>_id [n_t], <table>_value [n_t, dim_t] -> <table>_result, rows that were given
    <store>/raw_assign  id [N], id_split [T + 1], flat_value         -> result, rows that were given
    <store>/raw_keys    bucket_range [2] int64                       -> id, id_split, bucket of all rows there

Several raw requests may be stacked: their ids are concatenated, and so are their splits, each starting at 0. Wide keys
need their buckets, too (docs/formats/buckets.md), in ``bucket`` or ``<table>_bucket`` as int32.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.tables import ALL_BUCKETS, UNTOLD, buckets_of_keys, keys_in, shared_buckets, write_keyed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from monolith.serving.tensor_messages import Strings
    from monolith.tables import KeyedRows, ServingRows

LOOKUP: Final = "lookup"
RAW_LOOKUP: Final = "raw_lookup"
ASSIGN: Final = "hashtable_assign"
RAW_ASSIGN: Final = "raw_assign"
"""Follows the name of a store and a slash."""
RAW_KEYS: Final = "raw_keys"
"""Follows the name of a store and a slash; ByteDance Monolith has no such signature."""


def wire_names(tables: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Returns store -> names of its tables in requests, with the store's name as a prefix if there are several stores.

    >>> wire_names({"model": ["16-adagrad"]}), wire_names({"a": ["t"], "b": ["t"]})
    ({'model': ['16-adagrad']}, {'a': ['a/t'], 'b': ['b/t']})
    """
    if len(tables) == 1:
        return {store: list(names) for store, names in tables.items()}
    return {store: [f"{store}/{name}" for name in tables[store]] for store in sorted(tables)}


class ShardTables:
    """Tables of a shard, which answer requests for rows. Thread-safe.

    Args:
        stores: Store -> its serving tables.
        buckets: Consecutive buckets whose rows are kept.
        takes_rows: Whether rows may be assigned; False for rows of a log, which assignments would mix with older ones.
    """

    def __init__(
        self, stores: Mapping[str, ServingRows], *, buckets: range = ALL_BUCKETS, takes_rows: bool = True
    ) -> None:
        if not stores:
            raise InvalidArgumentError("shard: at least one store expected, got none")
        self.stores = {name: stores[name] for name in sorted(stores)}
        """Stores by name."""
        self.buckets = buckets
        self._takes_rows = takes_rows
        self.names = wire_names({name: store.schema.names for name, store in self.stores.items()})
        """Store -> names of its tables in requests."""
        self._num_tables = sum(map(len, self.names.values()))

    @property
    def signatures(self) -> list[str]:
        """Names of the signatures."""
        by_store = [f"{store}/{kind}" for store in self.stores for kind in (RAW_ASSIGN, RAW_KEYS)]
        return [LOOKUP, RAW_LOOKUP, ASSIGN, *by_store]

    @property
    def num_rows(self) -> int:
        """Number of rows of all tables."""
        return sum(store.stats().rows for store in self.stores.values())

    def call(self, signature: str, inputs: Inputs) -> dict[str, torch.Tensor]:
        """Answers one request.

        Raises:
            NotFoundError: the signature does not exist.
            InvalidArgumentError: an input does not fit the signature; the message names it.
            FailedPreconditionError: rows must not be assigned here.
        """
        if signature == LOOKUP:
            return self._lookup(inputs)
        if signature == RAW_LOOKUP:
            return {"flat_emb": self._raw_lookup(inputs)}
        store, _, kind = signature.rpartition("/")
        if signature not in self.signatures:
            raise NotFoundError(f"shard: no signature {signature!r}; it has {', '.join(self.signatures)}")
        if kind == RAW_KEYS:
            return self._raw_keys(store, inputs)
        if not self._takes_rows:
            raise FailedPreconditionError(
                "shard: it follows a delta log, which is where its rows come from; push to others"
            )
        return self._assign(inputs) if signature == ASSIGN else {"result": self._raw_assign(store, inputs)}

    # By table

    def _lookup(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        self._require_known(inputs, ("", "_bucket"))
        rows: dict[str, torch.Tensor] = {}
        for store, names in self.names.items():
            keys = [numbers_in(inputs, name, np.int64) for name in names]
            keyed = self._keyed(store, keys, table_buckets(inputs, names, keys))
            flat = self.stores[store].lookup(keyed).values.cpu()
            at = 0
            for name, own, dim in zip(names, keys, self.stores[store].schema.dims, strict=True):
                if own is not None:
                    rows[name] = flat[at : at + len(own) * dim].reshape(-1, dim)
                    at += len(own) * dim
        return rows

    def _assign(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        self._require_known(inputs, ("_id", "_value", "_bucket"))
        ready = []
        results: dict[str, torch.Tensor] = {}
        for store, names in self.names.items():
            keys = [numbers_in(inputs, f"{name}_id", np.int64) for name in names]
            values = [
                rows_in(inputs, f"{name}_value", 0 if own is None else len(own), dim)
                for name, own, dim in zip(names, keys, self.stores[store].schema.dims, strict=True)
            ]
            keyed = self._keyed(store, keys, table_buckets(inputs, names, keys))
            ready.append((self.stores[store], keyed, np.concatenate([part.reshape(-1) for part in values])))
            for name, own in zip(names, keys, strict=True):
                if own is not None:
                    results[f"{name}_result"] = torch.tensor(len(own))
        for place, keyed, flat in ready:
            write_keyed(place, keyed, flat)
        return results

    def _keyed(
        self, store: str, keys: Sequence[npt.NDArray[np.int64] | None], buckets: npt.NDArray[np.int32] | None
    ) -> KeyedRows:
        sizes = [0 if own is None else len(own) for own in keys]
        flat = np.concatenate([np.empty(0, np.int64), *(own for own in keys if own is not None)])
        splits = np.cumsum([0, *sizes])
        return buckets_of_keys(self.stores[store].schema, flat, splits, given=buckets, own=self.buckets)

    def _require_known(self, inputs: Inputs, suffixes: Sequence[str]) -> None:
        known = {f"{name}{suffix}" for names in self.names.values() for name in names for suffix in suffixes}
        unknown = sorted(inputs.keys() - known)
        if unknown:
            tables = ", ".join(name for names in self.names.values() for name in names)
            raise InvalidArgumentError(f"shard: no input {unknown[0]!r}; the tables are {tables}")

    # All tables together

    def _raw_lookup(self, inputs: Inputs) -> torch.Tensor:
        require_inputs(inputs, ("id", "id_split"), ("bucket",))
        requests = stacked_requests(inputs, self._num_tables)
        parts = [torch.empty(0)]
        for keys, splits, buckets in requests:
            first = 0
            for store, names in self.names.items():
                part = splits[first : first + len(names) + 1]
                own = slice(part[0], part[-1])
                own_buckets = None if buckets is None else buckets[own]
                keyed = buckets_of_keys(
                    self.stores[store].schema, keys[own], part - part[0], given=own_buckets, own=self.buckets
                )
                parts.append(self.stores[store].lookup(keyed).values.cpu())
                first += len(names)
        return torch.cat(parts)

    def _raw_assign(self, store: str, inputs: Inputs) -> torch.Tensor:
        require_inputs(inputs, ("id", "id_split", "flat_value"), ("bucket",))
        place = self.stores[store]
        dims = np.array(place.schema.dims)
        flat = needed_numbers(inputs, "flat_value", np.float32)
        ready = []
        at = 0
        for keys, splits, buckets in stacked_requests(inputs, len(dims)):
            size = int((np.diff(splits) * dims).sum())
            ready.append(
                (buckets_of_keys(place.schema, keys, splits, given=buckets, own=self.buckets), flat[at : at + size])
            )
            at += size
        if at != len(flat):
            raise InvalidArgumentError(f"flat_value: {at} floats expected for these ids, got {len(flat)}")
        return torch.tensor(sum(write_keyed(place, keyed, values) for keyed, values in ready))

    def _raw_keys(self, store: str, inputs: Inputs) -> dict[str, torch.Tensor]:
        require_inputs(inputs, ("bucket_range",), ())
        ends = needed_numbers(inputs, "bucket_range", np.int64).tolist()
        if len(ends) != 2 or not 0 <= ends[0] <= ends[1] <= len(ALL_BUCKETS):
            raise InvalidArgumentError(f"bucket_range: [first, end] of 0 to {len(ALL_BUCKETS)} expected, got {ends}")
        keyed = keys_in(self.stores[store], shared_buckets(range(*ends), self.buckets))
        return {
            "id": torch.from_numpy(keyed.keys),
            "id_split": torch.from_numpy(keyed.splits),
            "bucket": torch.from_numpy(keyed.buckets.astype(np.int32)),
        }


_KEPT = 2
"""Number of versions to keep: the newest, and the previous one for entries that have not loaded the newest yet."""


class VersionRows(NamedTuple):
    """The rows of one version."""

    version: int
    tables: ShardTables


class HeldRows:
    """The rows of a shard, by version. Thread-safe.

    Live rows come from a log or from pushes instead of an export; they serve every version.
    """

    def __init__(self, tables: ShardTables, *, version: int = 0, is_live: bool = False) -> None:
        self._lock = threading.Lock()
        self._held = [VersionRows(version, tables)]
        self._is_live = is_live

    @property
    def newest(self) -> VersionRows:
        """Rows for requests without a version."""
        return self._held[-1]

    def add(self, version: int, tables: ShardTables) -> None:
        """Adds a newer version; the oldest is dropped."""
        with self._lock:
            self._held = [*self._held, VersionRows(version, tables)][-_KEPT:]

    def of(self, version: int | None) -> VersionRows:
        """Returns the rows for a requested version."""
        held = self._held
        if version is None or self._is_live:
            return held[-1]
        for rows in held:
            if rows.version == version:
                return rows
        known = " and ".join(str(rows.version) for rows in held)
        raise NotFoundError(f"no version {version}; served here: {known}")


Inputs: TypeAlias = "Mapping[str, torch.Tensor | Strings]"


class RawRequest(NamedTuple):
    """One of several stacked requests."""

    keys: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int64]
    """[T + 1]: offsets of the keys of each table."""
    buckets: npt.NDArray[np.int32] | None


def require_inputs(inputs: Inputs, needed: Sequence[str], optional: Sequence[str]) -> None:
    """Rejects missing or unknown inputs."""
    missing = [name for name in needed if name not in inputs]
    unknown = sorted(inputs.keys() - {*needed, *optional})
    if missing or unknown:
        raise InvalidArgumentError(
            f"shard: inputs {', '.join(needed)} expected, got {', '.join(sorted(inputs)) or 'none'}"
        )


def numbers_in(inputs: Inputs, name: str, dtype: type[np.generic], *, dims: int = 1) -> npt.NDArray[Any] | None:
    """Returns an input as an array; None if it is missing."""
    return needed_numbers(inputs, name, dtype, dims=dims) if name in inputs else None


def needed_numbers(inputs: Inputs, name: str, dtype: type[np.generic], *, dims: int = 1) -> npt.NDArray[Any]:
    """Returns an input as an array. REQUIRES: the input exists."""
    values = inputs[name]
    kind = str(values.dtype).removeprefix("torch.")
    if kind != np.dtype(dtype).name or values.ndim != dims:
        shape = list(values.shape)
        raise InvalidArgumentError(
            f"{name}: {np.dtype(dtype).name} of {dims} dims expected, got {kind} of shape {shape}"
        )
    return np.ascontiguousarray(values.numpy() if isinstance(values, torch.Tensor) else values)


def rows_in(inputs: Inputs, name: str, count: int, dim: int) -> npt.NDArray[np.float32]:
    """Returns rows [count, dim]; the input may be missing if `count` is 0."""
    values = numbers_in(inputs, name, np.float32, dims=2)
    rows = np.empty((0, dim), np.float32) if values is None else values
    if rows.shape != (count, dim):
        raise InvalidArgumentError(f"{name}: [{count}, {dim}] expected, got {list(rows.shape)}")
    return rows


def table_buckets(
    inputs: Inputs, names: Sequence[str], keys: Sequence[npt.NDArray[np.int64] | None]
) -> npt.NDArray[np.int32] | None:
    """Returns the buckets of all keys, from ``<table>_bucket`` of each table; None if no table has them."""
    if not any(f"{name}_bucket" in inputs for name in names):
        return None
    parts = []
    for name, own in zip(names, keys, strict=True):
        count = 0 if own is None else len(own)
        buckets = numbers_in(inputs, f"{name}_bucket", np.int32)
        parts.append(np.full(count, UNTOLD, np.int32) if buckets is None else buckets)
        if len(parts[-1]) != count:
            raise InvalidArgumentError(
                f"{name}_bucket: {count} buckets expected, one for each key, got {len(parts[-1])}"
            )
    return np.concatenate(parts)


def stacked_requests(inputs: Inputs, num_tables: int) -> Iterator[RawRequest]:
    """Yields the requests of ``id`` and ``id_split``, each with its own split; usually there is one."""
    keys = needed_numbers(inputs, "id", np.int64)
    flat_splits = needed_numbers(inputs, "id_split", np.int64)
    buckets = numbers_in(inputs, "bucket", np.int32)
    if buckets is not None and len(buckets) != len(keys):
        raise InvalidArgumentError(f"bucket: {len(keys)} buckets expected, one for each id, got {len(buckets)}")
    width = num_tables + 1
    if len(flat_splits) % width:
        raise InvalidArgumentError(
            f"id_split: {width} numbers expected for {num_tables} tables, got {len(flat_splits)}"
        )
    splits = flat_splits.reshape(-1, width)
    if (splits[:, 0] != 0).any() or (np.diff(splits) < 0).any() or (splits[:, -1] > len(keys)).any():
        raise InvalidArgumentError(
            f"id_split: numbers from 0 upwards, to the number of ids, expected; got {flat_splits[:8].tolist()}"
            f"{'...' if len(flat_splits) > 8 else ''}"
        )
    if splits[:, -1].sum() != len(keys):
        raise InvalidArgumentError(f"id: {int(splits[:, -1].sum())} ids expected by id_split, got {len(keys)}")
    at = 0
    for own in splits:
        end = at + int(own[-1])
        yield RawRequest(keys[at:end], own, None if buckets is None else buckets[at:end])
        at = end
