"""`ParameterSyncClient`: gives the rows of a delta log to the receivers of one shard, and knows how far each is.

A push that fails is repeated with the next run. A receiver that is new, or has begun another life, gets all rows of a
base first. Rows may arrive twice, and never in a wrong order.
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
    from monolith.cluster.credentials import ClientCredentials
    from monolith.serving.push.row_parts import PushSignature
    from monolith.tables.table_config import TableConfig

__all__ = ["ParameterSyncClient", "PushOptions", "result_json"]

_log = logging.getLogger(__name__)

LIMIT_SECONDS = 60.0
"""Of one run over all receivers."""


@config
class PushOptions(Config):
    """Keyword arguments of `ParameterSyncClient`."""

    timeout_seconds: float = 3.0
    """For one request."""
    part_bytes: int = PART_BYTES
    """The longest request."""
    signature: PushSignature = "raw_assign"
    """How rows are given: all tables at once, or by table."""
    positions: str | None = None
    """File that keeps how far each receiver is; None: every receiver begins at a base when this process does."""
    tables: Mapping[str, Mapping[str, TableConfig]] | None = None
    """Store -> configs of its serving tables; None: as the log describes them."""
    credentials: ClientCredentials | None = None
    """What receivers are shown."""
    clock: Clock | None = None

    def __post_init__(self) -> None:
        require_positive(self, "timeout_seconds", "part_bytes")


class ParameterSyncClient:
    """Pushes to the replicas of one shard. One thread at a time may call it.

    Args:
        log: Where the rows come from; a path or URL, or a `DeltaLog`.
        model: Name of the model; receivers are called ``<model>:ps_<i>``.
        shard: Whose rows are pushed, such as ``0/3``.
        targets: Addresses of the receivers.
        options: The fields of `PushOptions`, by name.
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
        self._wanted = PushOptions(**options)
        self._clock = self._wanted.clock or SystemClock()
        self._log = log if isinstance(log, DeltaLog) else DeltaLog(log)
        self._rows = LogRows(self._log, buckets=number.buckets, tables=self._wanted.tables)
        self.model = shard_model(model, number.index)
        """As receivers are called."""
        self._positions = PushPositions(self._wanted.positions, log=self._log.place)
        self._channels = ShardChannels(self._wanted.credentials)
        self._targets: list[str] = []
        self.set_targets(targets)

    @property
    def targets(self) -> list[str]:
        """Addresses of the receivers."""
        return list(self._targets)

    def set_targets(self, targets: Sequence[str]) -> None:
        """Takes others; one that is gone and comes back begins at a base."""
        self._targets = list(dict.fromkeys(targets))
        if self._targets:
            self._positions.keep(self._targets)
        self._channels.keep(set(self._targets))

    def push(self, *, limit_seconds: float = LIMIT_SECONDS) -> PushResult:
        """Gives every receiver what it does not have yet, one after the other.

        What goes wrong is told of the receiver that it went wrong with; the others get theirs. A run that takes longer
        than its limit goes on with the next one.

        Raises:
            OpError: the log is away, or of another model.
        """
        deadline = self._clock.monotonic() + limit_seconds
        parts = self._rows.parts()
        return PushResult(responses=[self._push_to(target, parts, deadline) for target in self._targets])

    def close(self) -> None:
        """Ends connections; the log stays open for who gave it."""
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
    """The result of a run as JSON, with the names of its messages.

    >>> result_json(PushResult(responses=[PushResponse(status_code=0, target="a:1", update_num=3)])).split()
    ['{', '"responses":', '[', '{', '"status_code":', '0,', '"target":', '"a:1",', '"update_num":', '3', '}', ']', '}']
    """
    return json_format.MessageToJson(result, preserving_proto_field_name=True)
