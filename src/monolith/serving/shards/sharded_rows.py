"""`ShardedRows`: looks up rows at the shards of a model, within a strict deadline.

If a replica fails, hangs or returns an invalid answer, another one of its shard is tried while there is time. If a
shard has none left, the lookup fails; zeros are returned for its rows only if configured.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from monolith import _core
from monolith.clock import Clock, SystemClock
from monolith.closing import Closing
from monolith.config import Config, config, require_positive
from monolith.errors import InternalError, InvalidArgumentError, OpError
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.shards.channels import (
    HedgedRequest,
    ShardAnswer,
    ShardCall,
    ShardChannels,
    ShardFanOut,
    ShardQuestion,
)
from monolith.serving.shards.replicas import ListedReplicas, Replicas, shard_model
from monolith.serving.shards.row_versions import merged_versions
from monolith.serving.shards.shard_tables import LOOKUP
from monolith.serving.tensor_messages import message_of, value_of
from monolith.tables import owned_ranges

if TYPE_CHECKING:
    import numpy.typing as npt

    from monolith.rpc import ClientCredentials

_SHUN_SECONDS = 5.0
"""How long a failed replica is tried after the others."""


@config
class ShardedRowsConfig(Config):
    """Keyword arguments of `ShardedRows`."""

    max_rpc_deadline_millis: float = 3000.0
    """Deadline of a lookup; it is sent with every call, so that shards cancel their work, too."""
    hedge_millis: float | None = None
    """Delay after which a request is hedged with another replica; None: a third of the deadline."""
    lost_shards: Literal["fail", "zeros"] = "fail"
    """Policy if all replicas of a shard fail: raise, or return zeros for its rows and list the lost shards."""
    credentials: ClientCredentials | None = None
    """Credentials for the shards."""
    clock: Clock | None = None

    def __post_init__(self) -> None:
        require_positive(self, "max_rpc_deadline_millis")
        if self.hedge_millis is not None and self.hedge_millis <= 0:
            raise InvalidArgumentError(f"ShardedRows: hedge_millis must be above 0 or None, got {self.hedge_millis}")
        if self.lost_shards not in ("fail", "zeros"):
            raise InvalidArgumentError(f"ShardedRows: lost_shards must be 'fail' or 'zeros', got {self.lost_shards!r}")


class FetchedRows(NamedTuple):
    """Result of a lookup."""

    rows: dict[str, torch.Tensor]
    """Table -> float32 [n, dim], zeros for ids without a row."""
    lost_shards: tuple[int, ...]
    """Shards whose rows are zeros because no replica answered."""
    sparse: dict[str, int]
    """Part of the log -> number: no row is older than that increment; empty if shards follow no log."""
    told: dict[int, Mapping[str, int]]
    """Shard that answered -> part of the log -> number of its last applied increment."""


class _TableLookup(NamedTuple):
    """Lookup of one table at one shard."""

    table: str
    places: npt.NDArray[np.int64]
    """Indices of its ids among those of the table."""
    inverse: npt.NDArray[np.int64]
    """Index of each id among the distinct ids."""
    num_ids: int
    """Number of distinct ids."""


class _ShardPart(NamedTuple):
    """Lookup at one shard."""

    shard: int
    request: messages.PredictRequest
    lookups: list[_TableLookup]


class ShardedRows(Closing):
    """Rows of a model whose shards are other processes. Thread-safe; the first call opens connections.

    Args:
        model: Name of the model.
        tables: Table name at the shards -> its dim.
        shards: The addresses of the replicas of each shard, or a `Replicas` that resolves them.
        options: The fields of `ShardedRowsConfig`, by name.
    """

    def __init__(
        self, model: str, tables: Mapping[str, int], shards: Replicas | Sequence[Sequence[str]], **options: Any
    ) -> None:
        self._model = model
        self._dims = dict(tables)
        self._replicas: Replicas = ListedReplicas(shards) if isinstance(shards, Sequence) else shards
        self._config = ShardedRowsConfig(**options)
        self._clock = self._config.clock or SystemClock()
        self._channels = ShardChannels(self._config.credentials)
        self.num_shards = self._replicas.num_shards
        """Number of shards of the model."""
        self.ranges = owned_ranges(self.num_shards)
        """The buckets of each shard."""
        self._starts = np.array([buckets.start for buckets in self.ranges[1:]])
        self._version: int | None = None
        self._lock = threading.Lock()
        self._failed_at: dict[str, float] = {}
        """Address -> time of its last failure."""
        self._random = random.Random()  # noqa: S311 - load balancing, not security

    def of_version(self, version: int | None, tables: Mapping[str, int]) -> ShardedRows:
        """Returns a view of these shards for one version of the model and its tables; closed with this object.

        Args:
            version: Version of the export of the rows; None: the current rows of a shard.
            tables: Tables as in the constructor.
        """
        view = copy.copy(self)
        view._version, view._dims = version, dict(tables)  # noqa: SLF001 - one of our own
        return view

    def why_not_ready(self, timeout_seconds: float) -> str | None:
        """Queries the status of every replica; returns a sentence if a shard has no ready replica, else None."""
        calls = {
            shard: [
                self._channels.status(address, self._spec(shard), timeout_seconds) for address in self._order(shard)
            ]
            for shard in range(self.num_shards)
        }
        for shard, asked in calls.items():
            problem: str | None = "no replica of it is known"
            for call in asked:
                problem = _why_not(call)
                if problem is None:
                    break
            if problem is not None:
                return f"shard {shard} of {self._model}: {problem}"
        return None

    def lookup(
        self,
        ids: Mapping[str, torch.Tensor],
        *,
        buckets: Mapping[str, torch.Tensor] | None = None,
        deadline_millis: float | None = None,
    ) -> FetchedRows:
        """Looks up the rows of ids.

        Args:
            ids: Table -> int64 [n], the keys of its rows; duplicates are sent once.
            buckets: Table -> int32 [n], for tables with wide keys (docs/formats/buckets.md).
            deadline_millis: Deadline of this call, at most the configured one.

        Raises:
            DeadlineExceededError: shards did not respond in time.
            UnavailableError: no replica of a shard can be reached.
            OpError: the last error of a shard.
        """
        seconds = self._config.max_rpc_deadline_millis / 1000
        if deadline_millis is not None:
            seconds = min(seconds, deadline_millis / 1000)
        parts = self._parts(ids, buckets or {})
        gathering = ShardFanOut(
            self._channels,
            [self._question(part, seconds) for part in parts],
            seconds=seconds,
            read=lambda number, answer: self._rows_of(parts[number].shard, parts[number].lookups, answer),
            on_failed=self._note_failed,
            clock=self._clock,
        )
        gathering.run()
        if gathering.lost and self._config.lost_shards == "fail":
            raise gathering.lost[min(gathering.lost)]
        rows = {table: torch.zeros(len(keys), self._dims[table]) for table, keys in ids.items()}
        reported: dict[int, Mapping[str, int]] = {}
        for place, (answer, by_table) in gathering.answers.items():
            for lookup, values in zip(parts[place].lookups, by_table, strict=True):
                rows[lookup.table][torch.from_numpy(lookup.places)] = values[torch.from_numpy(lookup.inverse)]
            reported[parts[place].shard] = answer.sparse
        lost = tuple(sorted(parts[place].shard for place in gathering.lost))
        return FetchedRows(rows, lost, merged_versions(reported, self.ranges), reported)

    def close(self) -> None:
        """Closes connections, and cancels calls in flight."""
        self._channels.close()

    # Requests

    def _parts(self, ids: Mapping[str, torch.Tensor], buckets: Mapping[str, torch.Tensor]) -> list[_ShardPart]:
        requests: dict[int, tuple[messages.PredictRequest, list[_TableLookup]]] = {}
        for table, table_ids in ids.items():
            keys, own_buckets, sent = self._checked(table, table_ids, buckets.get(table))
            shards = np.searchsorted(self._starts, own_buckets, side="right")
            for shard in np.unique(shards).tolist():
                places = np.flatnonzero(shards == shard)
                distinct, inverse = _distinct(keys[places], own_buckets[places])
                request, lookups = requests.setdefault(shard, (messages.PredictRequest(), []))
                request.inputs[table].CopyFrom(message_of(torch.from_numpy(keys[places][distinct])))
                if sent:
                    own = torch.from_numpy(own_buckets[places][distinct].astype(np.int32))
                    request.inputs[f"{table}_bucket"].CopyFrom(message_of(own))
                lookups.append(_TableLookup(table, places, inverse, len(distinct)))
        for shard, (request, _) in requests.items():
            request.model_spec.CopyFrom(self._spec(shard, LOOKUP))
        return [_ShardPart(shard, *requests[shard]) for shard in sorted(requests)]

    def _question(self, part: _ShardPart, seconds: float) -> ShardQuestion:
        hedge = self._config.hedge_millis
        race = HedgedRequest(self._order(part.shard), seconds / 3 if hedge is None else hedge / 1000)
        return ShardQuestion(f"shard {part.shard} of {self._model}", part.request, race)

    def _spec(self, shard: int, signature: str = "") -> messages.ModelSpec:
        spec = messages.ModelSpec(name=shard_model(self._model, shard), signature_name=signature)
        if self._version is not None:
            spec.version.value = self._version
        return spec

    def _checked(
        self, table: str, ids: torch.Tensor, buckets: torch.Tensor | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bool]:
        """Returns keys and their buckets, and whether the buckets have to be sent."""
        if table not in self._dims:
            raise InvalidArgumentError(f"rows: no table {table!r}; there are {', '.join(self._dims)}")
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise InvalidArgumentError(f"table {table!r}: ids must be int64 [n], got {ids.dtype} {list(ids.shape)}")
        keys = ids.contiguous().numpy()
        by_key = _core.bucket_of(keys).astype(np.int64)
        if buckets is None:
            return keys, by_key, False
        if len(buckets) != len(keys):
            raise InvalidArgumentError(
                f"table {table!r}: {len(keys)} buckets expected, one for each id, got {len(buckets)}"
            )
        own = buckets.numpy().astype(np.int64)
        return keys, own, bool((own != by_key).any())

    def _order(self, shard: int) -> list[str]:
        """Returns the replicas of a shard, recently failed ones last."""
        replicas = list(self._replicas.of(shard))
        now = self._clock.monotonic()
        with self._lock:
            self._random.shuffle(replicas)
            shunned = {
                address for address in replicas if now - self._failed_at.get(address, float("-inf")) < _SHUN_SECONDS
            }
        return sorted(replicas, key=lambda address: address in shunned)

    # Answers

    def _rows_of(self, shard: int, lookups: Sequence[_TableLookup], answer: ShardAnswer) -> list[torch.Tensor]:
        """Parses the rows of each table."""
        by_table = []
        for lookup in lookups:
            rows: Any = None
            if lookup.table in answer.response.outputs:
                try:
                    rows = value_of(answer.response.outputs[lookup.table], name=lookup.table)
                except InvalidArgumentError as error:
                    raise InternalError(f"shard {shard} of {self._model}: {error.message}") from error
            expected = [lookup.num_ids, self._dims[lookup.table]]
            got = "nothing" if rows is None else f"{rows.dtype} {list(rows.shape)}"
            if got != f"{torch.float32} {expected}":
                raise InternalError(
                    f"shard {shard} of {self._model}, table {lookup.table!r}: float32 {expected} expected, got {got}"
                )
            by_table.append(rows)
        return by_table

    def _note_failed(self, address: str) -> None:
        with self._lock:
            self._failed_at[address] = self._clock.monotonic()


def _why_not(call: ShardCall) -> str | None:
    """Returns why the replica of a status call is not ready; None if it is."""
    try:
        statuses = call.result().response.model_version_status
    except OpError as error:
        return error.message
    if any(status.state == messages.ModelVersionStatus.AVAILABLE for status in statuses):
        return None
    problems = [status.status.error_message for status in statuses if status.status.error_message]
    return f"shard at {call.address}: {problems[0] if problems else 'it serves no version'}"


def _distinct(
    keys: npt.NDArray[np.int64], buckets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the indices of distinct (key, bucket) pairs, and the index of each pair among them."""
    pairs = np.stack([keys, buckets], axis=1)
    _, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
