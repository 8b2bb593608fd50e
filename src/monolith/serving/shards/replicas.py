"""Shards of a model: their numbers and names, and the addresses of their replicas."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from monolith.clock import Clock, SystemClock
from monolith.cluster import split_address
from monolith.errors import InvalidArgumentError
from monolith.tables import owned_ranges, require_owners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cluster.discovery import ServiceDiscovery


@dataclass(frozen=True, slots=True)
class ShardNumber:
    """Number of a shard, which determines its buckets."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> ShardNumber:
        """Parses ``i/n``, with i counted from 0.

        Raises:
            InvalidArgumentError: the text has another form.

        >>> ShardNumber.parse("1/3").buckets
        range(342, 683)
        """
        index, _, count = text.partition("/")
        if not (index.isdigit() and count.isdigit()):
            raise InvalidArgumentError(f"shard: i/n expected, such as 0/3 for the first of three, got {text!r}")
        return cls(int(index), int(count))

    def __post_init__(self) -> None:
        require_owners(self.count, subject="shard", name="the number of shards")
        if not 0 <= self.index < self.count:
            raise InvalidArgumentError(f"shard: an index from 0 to {self.count - 1} expected, got {self.index}")

    @property
    def buckets(self) -> range:
        """Buckets of the shard."""
        return owned_ranges(self.count)[self.index]


def shard_model(model: str, index: int) -> str:
    """Returns the name of a shard's sub-graph in requests.

    >>> shard_model("ranker", 2)
    'ranker:ps_2'
    """
    return f"{model}:ps_{index}"


_log = logging.getLogger(__name__)

REFRESH_SECONDS = 15.0


class Replicas(Protocol):
    """Resolver of the replicas of shards. Thread-safe."""

    @property
    def num_shards(self) -> int:
        """Number of shards of the model."""

    def of(self, shard: int) -> Sequence[str]:
        """Returns the currently known addresses of the replicas of a shard."""


class ListedReplicas:
    """Fixed replicas: a list of addresses for each shard."""

    def __init__(self, shards: Sequence[Sequence[str]]) -> None:
        for address in (address for shard in shards for address in shard):
            split_address(address)
        if not shards or not all(shards):
            raise InvalidArgumentError(
                f"replicas: an address for every shard expected, got {[list(addresses) for addresses in shards]}"
            )
        self._shards = [tuple(shard) for shard in shards]
        self.num_shards = len(self._shards)
        """Number of shards of the model."""

    def of(self, shard: int) -> Sequence[str]:
        """Returns the listed addresses."""
        return self._shards[shard]


def shard_role(model: str, shard: int) -> str:
    """Returns the role under which replicas of a shard register; their index is the number of the replica.

    Raises:
        InvalidArgumentError: the name of the model cannot be part of a role.

    >>> shard_role("ranker", 2)
    'ranker-ps-2'
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", model):
        raise InvalidArgumentError(
            f"replicas: a model that is discovered is letters, digits, '_' and '-', got {model!r}"
        )
    return f"{model}-ps-{shard}"


class DiscoveredReplicas:
    """Replicas that register with a discovery service. Addresses are refreshed when they are 15 seconds old.

    The first call waits; later a thread queries the service. While it is unreachable, the last addresses are used.

    Args:
        discovery: Service at which they register, under `shard_role`. Closed by its owner.
        model: Name of the model.
        num_shards: Number of shards of the model.
        refresh_seconds: Age at which addresses are refreshed.
        clock: Clock of this machine; None: the system clock.
    """

    def __init__(
        self,
        discovery: ServiceDiscovery,
        model: str,
        num_shards: int,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._discovery = discovery
        self._roles = [shard_role(model, shard) for shard in range(num_shards)]
        self.num_shards = num_shards
        """Number of shards of the model."""
        self._refresh_seconds = refresh_seconds
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: dict[int, tuple[str, ...]] = {}
        self._queried_at: dict[int, float] = {}

    def of(self, shard: int) -> Sequence[str]:
        """Returns the last addresses reported by the service."""
        now = self._clock.monotonic()
        with self._lock:
            known = self._known.get(shard)
            due = now - self._queried_at.get(shard, float("-inf")) >= self._refresh_seconds
            if due:
                self._queried_at[shard] = now
        if not known:
            return self._ask(shard)
        if due:
            threading.Thread(target=self._ask, args=(shard,), name="monolith-replicas", daemon=True).start()
        return known

    def _ask(self, shard: int) -> tuple[str, ...]:
        try:
            addresses = self._discovery.query(self._roles[shard])
        except Exception as error:  # noqa: BLE001 - services raise their own error types; keep the last addresses
            _log.warning("replicas of %s cannot be resolved, using the last known: %s", self._roles[shard], error)
            return self._known.get(shard, ())
        replicas = tuple(address for _, address in sorted(addresses.items()))
        with self._lock:
            if replicas or shard not in self._known:
                self._known[shard] = replicas
        return replicas
