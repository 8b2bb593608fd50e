"""`ParameterSyncClient`: pushes the rows of a delta log to the receivers of one shard, and tracks the position of each.

A failed push is retried by the next run. A new or restarted receiver gets all rows of a base first. Rows may arrive
twice, but never out of order. `DiscoverySyncBackend` finds the receivers with a discovery service.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from monolith.clock import SystemClock
from monolith.closing import Closing
from monolith.deltalog import DeltaLog
from monolith.errors import InvalidArgumentError, OpError, UnavailableError
from monolith.serving.protos.parameter_sync_pb2 import PushResponse, PushResult
from monolith.serving.push.log_rows import LogRows
from monolith.serving.push.target_run import PushConfig, PushPositions, Receivers, TargetRun
from monolith.serving.shards.channels import ShardChannels
from monolith.serving.shards.replicas import ShardNumber, shard_model, shard_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cluster.discovery import ServiceDiscovery

_log = logging.getLogger(__name__)

LIMIT_SECONDS = 60.0
"""Default time limit of one run over all receivers."""


class ParameterSyncClient(Closing):
    """Client that pushes to the replicas of one shard. Not thread-safe: calls must not overlap.

    Args:
        log: Source of the rows: a path or URL, or a `DeltaLog`.
        model: Name of the model; receivers are called ``<model>:ps_<i>``.
        shard: Shard whose rows are pushed, such as ``0/3``.
        targets: Addresses of the receivers.
        options: The fields of `PushConfig`, by name.
    """

    def __init__(
        self, log: DeltaLog | str, model: str, shard: ShardNumber | str, targets: Sequence[str] = (), **options: Any
    ) -> None:
        number = ShardNumber.parse(shard) if isinstance(shard, str) else shard
        config = PushConfig(**options)
        self._log = log if isinstance(log, DeltaLog) else DeltaLog(log)
        self._rows = LogRows(self._log, buckets=number.buckets, tables=config.tables)
        self.model = shard_model(model, number.index)
        """Model name at the receivers."""
        self._clock = config.clock or SystemClock()
        self._positions = PushPositions(config.positions, log=self._log.place)
        self._channels = ShardChannels(config.credentials)
        self._receivers = Receivers(self._channels, self.model, config, self._positions, self._clock)
        self._targets: list[str] = []
        self.set_targets(targets)

    @property
    def targets(self) -> list[str]:
        """Addresses of the receivers."""
        return list(self._targets)

    def set_targets(self, targets: Sequence[str]) -> None:
        """Replaces the receivers; one that is removed and added again starts at a base."""
        self._targets = list(dict.fromkeys(targets))
        if self._targets:
            self._positions.keep(self._targets)
        self._channels.keep(set(self._targets))

    def push(self, *, limit_seconds: float = LIMIT_SECONDS) -> PushResult:
        """Sends every receiver the rows that it does not have yet, one receiver after the other.

        An error is reported in the response of its receiver and does not affect the others. If the time limit is
        reached, the next run continues.

        Raises:
            OpError: the log is unreachable or belongs to another model.
        """
        deadline = self._clock.monotonic() + limit_seconds
        parts = self._rows.parts()
        return PushResult(responses=[self._push_to(target, parts, deadline) for target in self._targets])

    def close(self) -> None:
        """Closes connections; the log stays open."""
        self._channels.close()

    # One receiver

    def _push_to(self, target: str, parts: Sequence[str], deadline: float) -> PushResponse:
        run = TargetRun(target, self._rows, self._receivers, deadline=deadline)
        try:
            run.push(parts)
        except OpError as error:
            _log.warning("push to %s: %s", target, error)
            return PushResponse(
                status_code=error.error_code, error_message=error.message, target=target, update_num=run.num_ids
            )
        return PushResponse(status_code=0, error_message="", target=target, update_num=run.num_ids)


def result_json(result: PushResult) -> str:
    """Encodes the result of a run as JSON, with the field names of its messages.

    >>> result_json(PushResult(responses=[PushResponse(status_code=0, target="a:1", update_num=3)])).split()
    ['{', '"responses":', '[', '{', '"status_code":', '0,', '"target":', '"a:1",', '"update_num":', '3', '}', ']', '}']
    """
    return json_format.MessageToJson(result, preserving_proto_field_name=True)


_SUB_GRAPH = re.compile(r"ps_(\d+)")


class DiscoverySyncBackend:
    """Backend that pushes the rows of a log to the registered replicas of shards. Thread-safe.

    Args:
        discovery: Service at which receivers register, shard i of the model as ``<model>-ps-<i>``. Closed by its owner.
        log: Log to which the run publishes: a path or URL, or a `DeltaLog`.
        model: Name of the model.
        num_shards: Number of shards of the receivers, independent of the number of servers or ranks.
        positions: Folder for the positions of receivers; None: after a restart every receiver starts at a base.
        options: Fields of `PushConfig`.
    """

    def __init__(
        self,
        discovery: ServiceDiscovery,
        log: DeltaLog | str,
        model: str,
        num_shards: int,
        *,
        positions: str | None = None,
        **options: Any,
    ) -> None:
        self._discovery = discovery
        self._log = log
        self._model = model
        self._shards = [ShardNumber(index, num_shards) for index in range(num_shards)]
        self._positions = positions
        self._options = options
        self.num_shards = num_shards
        """Number of serving shards of the model."""
        shard_role(model, 0)

    def get_sync_targets(self, sub_graph: str) -> Sequence[str]:
        """Returns the addresses of the replicas of a sub-graph, ordered by replica number.

        Raises:
            InvalidArgumentError: the name is not that of a shard.
            UnavailableError: the discovery service is unreachable.
        """
        match = _SUB_GRAPH.fullmatch(sub_graph)
        if match is None or int(match[1]) >= self.num_shards:
            raise InvalidArgumentError(
                f"push: a sub-graph from ps_0 to ps_{self.num_shards - 1} expected, got {sub_graph!r}"
            )
        try:
            replicas = self._discovery.query(shard_role(self._model, int(match[1])))
        except Exception as error:  # services raise their own error types
            raise UnavailableError(f"push: the receivers of {sub_graph} cannot be resolved: {error}") from error
        return [address for _, address in sorted(replicas.items())]

    def open_pusher(self, ps_index: int) -> ParameterSyncClient:
        """Returns a client that pushes to ``ps_<index>``; the caller closes it."""
        positions = None
        if self._positions is not None:
            name = f"{self._model}-ps-{ps_index}-of-{self.num_shards}.json"
            positions = str(Path(self._positions) / name)
        return ParameterSyncClient(self._log, self._model, self._shards[ps_index], positions=positions, **self._options)
