"""Identity of a process of a job and how it discovers the others; which servers keep the rows, and in which order."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from monolith.cluster import (
    concat_ip_and_port,
    get_local_host,
    get_ps_cluster_file_name,
    save_ps_cluster_to_file,
    split_address,
)
from monolith.cluster.discovery import ScheduledDiscovery
from monolith.errors import OpError
from monolith.ps import assign_places, find_place, stop_servers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.train.config.job_config import JobConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlace:
    """One process of a job."""

    role: Literal["ps", "worker"]
    index: int
    num_ps: int
    """Servers that keep rows."""
    num_workers: int
    settings: JobConfig
    discovery: ServiceDiscovery
    model_dir: str
    publishes: bool = False
    """Whether the chief will have servers publish the rows that they keep."""

    @property
    def has_standbys(self) -> bool:
        """Returns whether there are more servers than are used."""
        return bool(self.settings.num_extra_ps or self.settings.num_redundant_ps)

    @property
    def token(self) -> str | None:
        """Returns the secret of the job, or None."""
        path = self.settings.token_file
        return None if path is None else Path(path).read_text(encoding="utf-8").strip()

    @property
    def address(self) -> str:
        """Address to listen on: the given host, else the scheduler's, else that of this machine.

        The port is the scheduler's, or a free one.
        """
        host, port = None, 0
        if isinstance(self.discovery, ScheduledDiscovery) and self.discovery.addr:
            host, port = split_address(self.discovery.addr)
        return concat_ip_and_port(self.settings.host or host or get_local_host(), port)


_log = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0
_ASSIGN_SECONDS = 60.0
_GONE_SECONDS = 10.0
"""Seconds after which a server that listens without identifying itself has lost its index."""


class ServerPlaces:
    """The servers of a job by index, as discovered by one of its workers. Not thread-safe."""

    def __init__(self, place: RolePlace) -> None:
        self._place = place

    @property
    def members(self) -> tuple[int, ...]:
        """Returns the registration numbers of the servers in use, by index.

        A server that restarts with its number is the same one, at any address.
        """
        if not self._place.has_standbys:
            return tuple(range(self._place.num_ps))
        registered = {address: index for index, address in self._place.discovery.query("ps").items()}
        by_index = self._find(list(registered))
        return tuple(registered[by_index[place]] for place in sorted(by_index))

    def chosen(self) -> list[str] | None:
        """Returns the servers by index; None while an index of the job is unassigned."""
        by_index = self._find(list(self._place.discovery.query("ps").values()))
        return None if len(by_index) < self._place.num_ps else [by_index[place] for place in sorted(by_index)]

    def take(self, addresses: Sequence[str]) -> None:
        """Assigns an index to each of these servers; idempotent.

        Raises:
            FailedPreconditionError: a server has another index.
            DeadlineExceededError: a server is unreachable.
        """
        if self._place.has_standbys:
            self._assign(dict(enumerate(addresses)))

    def addresses(self) -> dict[int, str]:
        """Returns index -> address of the servers registered now.

        If there are standbys, the chief assigns the index of a lost server to the first of them.
        """
        known = self._place.discovery.query("ps")
        if not self._place.has_standbys:
            return known
        by_index = self._find(list(known.values()))
        if len(by_index) == self._place.num_ps or self._place.index != 0:
            return by_index
        # One that is only slow keeps its place: two servers would have it, and each some of the rows.
        silent = [address for address in known.values() if address not in by_index.values()]
        by_index |= self._find(silent, timeout_seconds=_GONE_SECONDS)
        missing = [place for place in range(self._place.num_ps) if place not in by_index]
        free = [address for address in known.values() if address not in by_index.values() and self._stands_by(address)]
        for place, address in zip(missing, free, strict=False):
            try:
                self._assign({place: address})
            except OpError as error:
                _log.warning("the server at %s does not take place %d: %s", address, place, error)
                continue
            _log.warning("place %d is taken by the server at %s, which stood by", place, address)
            by_index[place] = address
        if len(by_index) == self._place.num_ps and self._place.settings.num_redundant_ps:
            file_name = get_ps_cluster_file_name(self._place.model_dir, self._place.settings.uuid)
            save_ps_cluster_to_file(file_name, [by_index[place] for place in sorted(by_index)])
        return by_index

    def stop_all(self) -> None:
        """Ends all servers, those that stand by among them."""
        addresses = sorted(self._place.discovery.query("ps").values())
        failed = stop_servers(addresses, token=self._place.token)
        if failed:
            _log.warning("servers at %s could not be stopped; they have ended, or are unreachable", failed)

    def _assign(self, places: Mapping[int, str]) -> None:
        assign_places(places, self._place.num_ps, token=self._place.token, timeout_seconds=_ASSIGN_SECONDS)

    def _find(self, addresses: Sequence[str], *, timeout_seconds: float = _LOOK_SECONDS) -> dict[int, str]:
        token = self._place.token
        places = [find_place(address, token=token, timeout_seconds=timeout_seconds) for address in addresses]
        return {
            server.index: server.address
            for server in places
            if server is not None and server.index is not None and server.num_ps == self._place.num_ps
        }

    def _stands_by(self, address: str) -> bool:
        server = find_place(address, token=self._place.token)
        return server is not None and server.index is None
