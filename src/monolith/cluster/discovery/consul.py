"""Discovery through Consul: one service per job, its instances distinguished by tags."""

from __future__ import annotations

import http
import ipaddress
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.background import Backoff
from monolith.clock import SystemClock
from monolith.cluster.addresses import concat_ip_and_port, split_address
from monolith.cluster.discovery.consul_client import Client, ConsulException
from monolith.cluster.discovery.service_discovery import ServiceDiscovery, check_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.clock import Clock

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_TRIES = 5
MAX_BACKOFF_SECONDS = 5.0


def retry_with_socket_error(
    call: Callable[[], _T], *, max_backoff_seconds: float = MAX_BACKOFF_SECONDS, clock: Clock | None = None
) -> _T:
    """Retries a call on socket errors, at most five tries, and raises the last error.

    Between two tries it sleeps for a random part of ``max_backoff_seconds``, so that the processes of a job that lost a
    service at the same time do not all reconnect at the same time. A response that refuses the request is no socket
    error.
    """
    clock = clock or SystemClock()
    backoff = Backoff(max_backoff_seconds, max_backoff_seconds, jitter="full", tries=MAX_TRIES)
    for tries, pause in enumerate(backoff, 1):
        try:
            return call()
        except OSError as err:
            if pause is None:
                raise
            _log.warning("try %d of %d failed (%s); next in %.1f s", tries, MAX_TRIES, err, pause)
            clock.sleep(pause)
    raise AssertionError("the last try returns or raises")


VISIBLE_WITHIN_SECONDS = 180.0
VISIBLE_POLL_SECONDS = 5.0
QUERY_TIMEOUT_SECONDS = 15.0


class ConsulServiceDiscovery(ServiceDiscovery):
    """Registers the service ``consul_id`` with the tags ``index``, ``name`` (the role) and ``ip``.

    Every call to the agent is tried up to five times on socket errors. ``agent_per_host`` specifies whether each host
    has its own agent, so that a stale entry of another host has to be removed at the agent of that host; the default is
    True when the client's agent is on this machine. `close` stops the heartbeats of ``client``.
    """

    def __init__(
        self,
        consul_id: str,
        retry_time_secs: float = 3.0,
        *,
        client: Client | None = None,
        agent_per_host: bool | None = None,
        max_backoff_seconds: float = MAX_BACKOFF_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        if not consul_id:
            raise ValueError("consul: the service name must not be empty; it is the uuid of the job")
        self._consul_id = consul_id
        self._retry_time_secs = retry_time_secs
        self._clock = clock or SystemClock()
        self._client = client or Client(clock=self._clock)
        self._agent_per_host = _is_on_this_machine(self._client.host) if agent_per_host is None else agent_per_host
        self._max_backoff_seconds = max_backoff_seconds

    def register(self, name: str, index: int, addr: str) -> None:
        """Registers an address, after removing other holders of its index, and waits until it is visible.

        Raises:
            OSError: It was not visible within 180 s: the agent accepted it, but lookups do not return it.
            ConsulException: The agent refused it.
        """
        check_entry(name, index, addr)
        host, port = split_address(addr)
        self._remove_stale(name, index, addr)
        tags = {"index": index, "name": name, "ip": host}

        def still_wanted() -> bool:
            return all(holder == addr for role, number, holder in self._lookup() if (role, number) == (name, index))

        self._retry(lambda: self._client.register(self._consul_id, port, tags, still_wanted=still_wanted))
        self._wait_until_visible(name, index, addr)

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Removes the entry of this address if it holds the index or if this client keeps it alive."""
        check_entry(name, index, addr)
        host, port = split_address(addr)
        if self._client.keeps_alive(self._consul_id, port):
            self._deregister_at(port)
        elif self.query(name).get(index) == addr:
            self._deregister_at(port, host if self._agent_per_host else None)

    def query_all(self) -> dict[str, dict[int, str]]:
        """Queries the agent for the addresses of all roles; entries without our tags are skipped.

        Raises:
            OSError: The agent could not be reached five times in a row.
        """
        addrs: dict[str, dict[int, str]] = {}
        for name, index, addr in self._retry(self._lookup):
            addrs.setdefault(name, {})[index] = addr
        return addrs

    def close(self) -> None:
        """Stops the heartbeats; the agent drops the entries when their time to live has passed."""
        self._client.close()

    def deregister_all(self) -> None:
        """Removes every entry of the service, including those of other processes."""
        for by_index in self.query_all().values():
            for addr in by_index.values():
                host, port = split_address(addr)
                local = self._client.keeps_alive(self._consul_id, port) or not self._agent_per_host
                self._deregister_at(port, None if local else host)

    def _remove_stale(self, name: str, index: int, addr: str) -> None:
        """Removes other holders of the index as far as possible; the rest expires with its time to live."""
        deadline = self._clock.monotonic() + VISIBLE_WITHIN_SECONDS
        while others := self._others(name, index, addr):
            self._remove(others, addr)
            if not self._others(name, index, addr):
                return
            if self._clock.monotonic() >= deadline:
                _log.warning("consul: %s still held by %s; registering in addition", f"{name} {index}", others)
                return
            self._clock.sleep(self._retry_time_secs)

    def _wait_until_visible(self, name: str, index: int, addr: str) -> None:
        for _ in range(int(VISIBLE_WITHIN_SECONDS / VISIBLE_POLL_SECONDS)):
            # A removed holder may have registered again before it could see that it was replaced.
            self._remove(self._others(name, index, addr), addr)
            if addr in self._holders(name, index):
                return
            self._clock.sleep(VISIBLE_POLL_SECONDS)
        self._deregister_at(split_address(addr)[1])
        raise OSError(
            f"consul: {name} {index} at {addr} was registered as {self._consul_id!r} and is not visible after "
            f"{VISIBLE_WITHIN_SECONDS:.0f} s; this machine may be blacklisted, use another one"
        )

    def _remove(self, holders: list[str], for_addr: str) -> None:
        own_host, _ = split_address(for_addr)
        for holder in holders:
            host, port = split_address(holder)
            _log.info("consul: %s is removed from %s for %s", holder, self._consul_id, for_addr)
            elsewhere = self._agent_per_host and host != own_host
            try:
                self._deregister_at(port, host if elsewhere else None)
            except (OSError, ConsulException) as err:
                _log.warning("consul: cannot remove %s: %s", holder, err)

    def _others(self, name: str, index: int, addr: str) -> list[str]:
        return [holder for holder in self._holders(name, index) if holder != addr]

    def _holders(self, name: str, index: int) -> list[str]:
        entries = self._retry(self._lookup)
        return [addr for role, number, addr in entries if (role, number) == (name, index)]

    def _lookup(self) -> list[tuple[str, int, str]]:
        """Returns role, index and address of every entry, in the agent's order."""
        entries: list[tuple[str, int, str]] = []
        for entry in self._client.lookup(self._consul_id, timeout=QUERY_TIMEOUT_SECONDS):
            if _has_our_tags(entry):
                tags = entry["Tags"]
                addr = concat_ip_and_port(str(tags["ip"]), int(entry["Port"]))
                entries.append((str(tags["name"]), int(tags["index"]), addr))
            else:
                _log.warning("consul: %s has an entry without name, index, ip and port: %r", self._consul_id, entry)
        return entries

    def _deregister_at(self, port: int, agent: str | None = None) -> None:
        try:
            self._retry(lambda: self._client.deregister(self._consul_id, port, agent))
        except ConsulException as err:
            if err.status != http.HTTPStatus.NOT_FOUND:  # a missing entry is what the caller wants
                raise

    def _retry(self, call: Callable[[], _T]) -> _T:
        return retry_with_socket_error(call, max_backoff_seconds=self._max_backoff_seconds, clock=self._clock)


def deregister_all(consul_id: str, *, agent_per_host: bool | None = None) -> None:
    """Removes every entry of a job from Consul, including those of other processes."""
    with ConsulServiceDiscovery(consul_id, agent_per_host=agent_per_host) as discovery:
        discovery.deregister_all()


def _has_our_tags(entry: dict[str, Any]) -> bool:
    tags = entry.get("Tags")
    if not isinstance(tags, dict) or not {"name", "index", "ip"} <= tags.keys():
        return False
    return str(tags["index"]).isdecimal() and str(entry.get("Port")).isdecimal()


def _is_on_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.startswith("/") or host == "localhost"
