"""`ParameterSyncClient`: pushes the rows of a delta log to the receivers of one shard, and tracks the position of each.

A failed push is retried by the next run. A new or restarted receiver gets all rows of a base first. Rows may arrive
twice, but never out of order.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

from google.protobuf import json_format

from monolith.clock import SystemClock
from monolith.config import Config, config, require_positive
from monolith.deltalog import DeltaLog
from monolith.errors import OpError
from monolith.serving.protos.parameter_sync_pb2 import PushResponse, PushResult
from monolith.serving.push.log_rows import LogRows
from monolith.serving.push.positions import PushPositions
from monolith.serving.push.row_parts import PART_BYTES
from monolith.serving.push.target_run import Sending, TargetRun
from monolith.serving.shards.channels import ShardChannels
from monolith.serving.shards.shard_number import ShardNumber, shard_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.clock import Clock
    from monolith.rpc.credentials import ClientCredentials
    from monolith.serving.push.row_parts import PushSignature
    from monolith.tables.table_config import TableConfig

__all__ = ["ParameterSyncClient", "PushConfig", "result_json"]

_log = logging.getLogger(__name__)

LIMIT_SECONDS = 60.0
"""Default time limit of one run over all receivers."""


@config
class PushConfig(Config):
    """Keyword arguments of `ParameterSyncClient`."""

    timeout_seconds: float = 3.0
    """Timeout of one request."""
    part_bytes: int = PART_BYTES
    """Maximum size of a request."""
    signature: PushSignature = "raw_assign"
    """Signature for the rows: all tables together, or by table."""
    positions: str | None = None
    """File for the positions of receivers; None: after a restart every receiver starts at a base."""
    tables: Mapping[str, Mapping[str, TableConfig]] | None = None
    """Store -> configs of its serving tables; None: from the schema of the log."""
    credentials: ClientCredentials | None = None
    """Credentials for the receivers."""
    clock: Clock | None = None

    def __post_init__(self) -> None:
        require_positive(self, "timeout_seconds", "part_bytes")


class ParameterSyncClient:
    """Client that pushes to the replicas of one shard. Not thread-safe: calls must not overlap.

    Args:
        log: Source of the rows: a path or URL, or a `DeltaLog`.
        model: Name of the model; receivers are called ``<model>:ps_<i>``.
        shard: Shard whose rows are pushed, such as ``0/3``.
        targets: Addresses of the receivers.
        options: The fields of `PushConfig`, by name.
    """

    def __init__(
        self,
        log: DeltaLog | str,
        model: str,
        shard: ShardNumber | str,
        targets: Sequence[str] = (),
        **options: Any,
    ) -> None:
        number = ShardNumber.parse(shard) if isinstance(shard, str) else shard
        self._wanted = PushConfig(**options)
        self._clock = self._wanted.clock or SystemClock()
        self._log = log if isinstance(log, DeltaLog) else DeltaLog(log)
        self._rows = LogRows(self._log, buckets=number.buckets, tables=self._wanted.tables)
        self.model = shard_model(model, number.index)
        """Model name at the receivers."""
        self._positions = PushPositions(self._wanted.positions, log=self._log.place)
        self._channels = ShardChannels(self._wanted.credentials)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One receiver

    def _push_to(self, target: str, parts: Sequence[str], deadline: float) -> PushResponse:
        run = TargetRun(
            target,
            self._rows,
            Sending(
                self._channels,
                self.model,
                self._wanted.signature,
                self._wanted.part_bytes,
                self._wanted.timeout_seconds,
            ),
            positions=self._positions,
            deadline=deadline,
            clock=self._clock,
        )
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
