"""`DiscoverySyncBackend`: finds the receivers of pushed rows with a discovery service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.errors import InvalidArgumentError, UnavailableError
from monolith.serving.push.client import ParameterSyncClient
from monolith.serving.shards.replicas import shard_role
from monolith.serving.shards.shard_number import ShardNumber

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.deltalog import DeltaLog

__all__ = ["DiscoverySyncBackend"]

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
        shard_role(model, 0)

    @property
    def num_shards(self) -> int:
        """Number of serving shards of the model."""
        return len(self._shards)

    def get_sync_targets(self, sub_graph: str) -> Sequence[str]:
        """Returns the addresses of the replicas of a sub-graph, ordered by replica number.

        Raises:
            InvalidArgumentError: the name is not that of a shard.
            UnavailableError: the discovery service is unreachable.
        """
        found = _SUB_GRAPH.fullmatch(sub_graph)
        if found is None or int(found[1]) >= self.num_shards:
            raise InvalidArgumentError(
                f"push: a sub-graph from ps_0 to ps_{self.num_shards - 1} expected, got {sub_graph!r}"
            )
        try:
            replicas = self._discovery.query(shard_role(self._model, int(found[1])))
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
