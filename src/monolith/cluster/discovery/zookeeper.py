"""Discovery through ZooKeeper: one ephemeral node per process, which ZooKeeper deletes when the process ends."""

from __future__ import annotations

import datetime as dt
import logging
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState

from monolith.background import Backoff, PeriodicThread
from monolith.clock import SystemClock
from monolith.cluster.discovery.service_discovery import ServiceDiscovery, check_entry
from monolith.cluster.discovery.zookeeper_client import MonolithKazooClient, require_zk_servers
from monolith.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monolith.clock import Clock


@dataclass(frozen=True, slots=True)
class Chores:
    """Work that is due now."""

    announce: tuple[str, ...] = ()
    """Paths to register again."""
    refresh: bool = False
    """Whether the map of the cluster may be out of date."""

    def __bool__(self) -> bool:
        return self.refresh or bool(self.announce)


class Upkeep:
    """The pending work of a process that has registered paths and mirrors those of others.

    Each path is registered again one period after its last registration, and immediately when a lost session is
    re-established: the server has dropped what the old session had registered. A suspended connection alone drops
    nothing, but watches may have been missed, so the mirror is refreshed. Nothing is due while there is no connection.
    Not thread-safe: the owner holds its lock.
    """

    def __init__(self, period_seconds: float) -> None:
        self._period = period_seconds
        self._due: dict[str, float] = {}
        self._connected = True
        self._lost = False
        self._refresh = False

    def registered(self, path: str, now: float) -> None:
        """Records that a path was registered."""
        self._due[path] = now + self._period

    def removed(self, path: str) -> None:
        """Removes a path."""
        self._due.pop(path, None)

    def failed(self, path: str, now: float, retry_seconds: float) -> None:
        """Schedules a retry for a path that could not be registered, unless it was removed meanwhile."""
        if path in self._due:
            self._due[path] = now + retry_seconds

    def changed(self) -> None:
        """Records that another process registered or left."""
        self._refresh = True

    def suspended(self) -> None:
        """Records that the connection broke; the session may still be valid."""
        self._connected = False

    def lost(self) -> None:
        """Records that the session has expired."""
        self._connected = False
        self._lost = True

    def connected(self) -> None:
        """Records that the connection is restored, with the old session or a new one."""
        self._connected = True
        self._refresh = True
        if self._lost:
            self._lost = False
            self._due = dict.fromkeys(self._due, -math.inf)

    def take(self, now: float) -> Chores:
        """Returns the work that is due. The mirror counts as refreshed; paths stay due until registered or failed."""
        if not self._connected:
            return Chores()
        chores = Chores(tuple(path for path, due in self._due.items() if due <= now), self._refresh)
        self._refresh = False
        return chores

    def seconds_until_due(self, now: float) -> float | None:
        """Returns the seconds until something is due if no event occurs; None: never."""
        if not self._connected or not (self._due or self._refresh):
            return None
        return 0.0 if self._refresh else max(0.0, min(self._due.values()) - now)


BASE_PATH = "/monolith"
STALE_AFTER = dt.timedelta(weeks=9)


def clear_zk_path(
    zk_server: str | None, job_name: str, force_clear_zk_path: bool, *, clock: Clock | None = None
) -> None:
    """Removes jobs that were not modified for nine weeks, then the remains of this job.

    A job with a live process, which is one that holds an ephemeral node, is never stale.

    Raises:
        ValueError: The path of the job exists and ``force_clear_zk_path`` is not set; or no server is given.
        KazooTimeoutError: No server answers.
    """
    client = MonolithKazooClient(require_zk_servers(zk_server))
    try:
        client.start()
        client.ensure_path(BASE_PATH)
        _remove_stale_jobs(client, (clock or SystemClock()).now())
        job_path = f"{BASE_PATH}/{job_name}"
        if client.exists(job_path):
            if not force_clear_zk_path:
                children = ",".join(sorted(client.get_children(job_path)))
                raise ValueError(f"there are [{children}] in monolith zk path")
            client.delete(job_path, recursive=True)
    finally:
        client.stop()
        client.close()


def is_stale(modified_ms: Iterable[int], now: float) -> bool:
    """Returns whether the newest of these times, in milliseconds, is more than nine weeks before ``now``, in seconds.

    >>> is_stale([0, 1_000], now=9 * 7 * 86400 + 1.5), is_stale([0, 1_000], now=9 * 7 * 86400 + 0.5)
    (True, False)
    """
    return max(modified_ms) / 1000 + STALE_AFTER.total_seconds() < now


def _remove_stale_jobs(client: MonolithKazooClient, now: float) -> None:
    for job in client.get_children(BASE_PATH):
        path = f"{BASE_PATH}/{job}"
        try:
            children, stat = client.get_children(path, include_data=True)
            stats = [client.get(f"{path}/{child}")[1] for child in children]
            has_live_process = any(child.ephemeralOwner for child in stats)
            if not has_live_process and is_stale([node.mtime for node in [stat, *stats]], now):
                client.delete(path, recursive=True)
                _log.info("zookeeper: removed %s, which nothing has touched for nine weeks", path)
        except NoNodeError:  # another process removes it
            continue
        except KazooException as err:
            _log.warning("zookeeper: cannot clean up %s: %r", path, err)


_log = logging.getLogger(__name__)

REGISTRATION_PERIOD_SECONDS = 1800.0
START_TIMEOUT_SECONDS = 15.0

_WORTH_ANOTHER_TRY = (ConnectionLoss, OperationTimeoutError, SessionExpiredError)


class ZKServiceDiscovery(ServiceDiscovery):
    """Registers processes as ``/monolith/<job_name>/<role>.<index>``, with the address as data.

    Watches keep a local mirror of the cluster, so `query` needs no call; while the servers are unreachable it returns
    the last mirrored state. One thread refreshes the mirror and repairs registrations: every half hour, and as soon as
    a lost session is re-established. Registering an index replaces its current holder; the former holder notices and
    releases it.

    Two locks: one serialises the reading of the mirror, the other guards shared state and is never held during calls to
    a server.
    """

    def __init__(
        self,
        job_name: str,
        zk_server: str | None = None,
        max_tries: int = 3,
        delay: float = 5,
        *,
        client: MonolithKazooClient | None = None,
        period_seconds: float = REGISTRATION_PERIOD_SECONDS,
    ) -> None:
        """Connects and reads the registered processes; ``client`` is an unstarted client that replaces ``zk_server``.

        Raises:
            ValueError: No server is given, or the job has no name.
            KazooTimeoutError: No server answers within 15 s.
        """
        if not job_name or "/" in job_name:
            raise ValueError(f"zookeeper: the job name must be one part of a path, got {job_name!r}")
        self._path = f"{BASE_PATH}/{job_name}"
        self._delay = delay
        self._max_tries = max_tries
        self._clock = SystemClock()
        self._client = client or MonolithKazooClient(require_zk_servers(zk_server))
        self._changed = threading.Condition()
        self._upkeep = Upkeep(period_seconds)
        self._own: dict[str, str] = {}
        self._reading = threading.Lock()
        self._known: dict[str, str] = {}
        self._unread: set[str] = set()
        self._thread = PeriodicThread(
            self._keep_up, every=None, name=f"zookeeper-upkeep-{job_name}", backoff=Backoff(delay, delay)
        )
        self._client.add_listener(self._on_state)
        try:
            self._client.start(timeout=START_TIMEOUT_SECONDS)
            self._refresh()
        except BaseException:
            self._stop_client()
            raise
        self._thread.start()

    def register(self, name: str, index: int, addr: str) -> None:
        """Creates the node of an index, replacing the node of another holder.

        Raises:
            UnavailableError: The servers could not be reached in ``max_tries`` tries.
        """
        check_entry(name, index, addr)
        path = self._node(name, index)
        self._retry(lambda: self._announce(path, addr, take_over=True), f"register {name} {index}")
        with self._changed:
            self._own[path] = addr
            self._upkeep.registered(path, self._clock.monotonic())
        self._thread.wake()
        self._retry(self._refresh, f"read {self._path}")

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Deletes the node of an index if it holds this address.

        Raises:
            UnavailableError: The servers could not be reached in ``max_tries`` tries.
        """
        check_entry(name, index, addr)
        path = self._node(name, index)
        with self._changed:
            if self._own.get(path) == addr:
                del self._own[path]
                self._upkeep.removed(path)
        self._retry(lambda: self._delete(path, addr), f"deregister {name} {index}")
        self._retry(self._refresh, f"read {self._path}")

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of all roles, as last seen."""
        with self._changed:
            known = sorted(self._known.items())
        addrs: dict[str, dict[int, str]] = {}
        for child, addr in known:
            role, dot, index = child.rpartition(".")
            if dot and index.isdecimal() and addr:
                addrs.setdefault(role, {})[int(index)] = addr
        return addrs

    def close(self) -> None:
        """Ends the session, which drops the nodes of this process, and the thread."""
        with self._changed:
            if self._thread.closed.is_set():
                return
            self._thread.closed.set()
            self._changed.notify_all()
        self._stop_client()
        self._thread.close()

    def _node(self, name: str, index: int) -> str:
        return f"{self._path}/{name}.{index}"

    def _announce(self, path: str, addr: str, *, take_over: bool) -> bool:
        """Registers this address at the node and returns True; False if another process owns the node and keeps it."""
        data = addr.encode()
        while True:
            try:
                self._client.create(path, data, ephemeral=True, makepath=True)
            except NodeExistsError:
                pass
            else:
                return True
            try:
                stored, stat = self._client.get(path)
                if stat.ephemeralOwner == self._session_id():
                    if stored != data:
                        self._client.set(path, data)
                    return True
                if not take_over:
                    return False
                # The node of another session, perhaps an earlier one of this process, would be deleted with that
                # session.
                self._client.delete(path, version=stat.version)
            except (NoNodeError, BadVersionError):
                continue  # changed concurrently: retry

    def _session_id(self) -> int:
        session = self._client.client_id
        if session is None:  # kazoo clears it while disconnected
            raise ConnectionLoss("no session")
        return int(session[0])

    def _delete(self, path: str, addr: str) -> None:
        try:
            stored, stat = self._client.get(path)
            if stored == addr.encode():
                self._client.delete(path, version=stat.version)
        except (NoNodeError, BadVersionError):
            return  # already deleted, or no longer this address

    def _refresh(self) -> None:
        """Reads the names, and the addresses that are new or changed, and sets a watch on each."""
        with self._reading:
            with self._changed:
                unread, self._unread = self._unread, set()
                known = dict(self._known)
            try:
                self._client.ensure_path(self._path)
                children = self._client.get_children(self._path, watch=self._on_event)
                for child in children:
                    if child not in known or child in unread:
                        known[child] = self._read(child)
            except BaseException:
                with self._changed:
                    self._unread |= unread
                    self._upkeep.changed()
                raise
            with self._changed:
                self._known = {child: known[child] for child in children}

    def _read(self, child: str) -> str:
        try:
            data, _ = self._client.get(f"{self._path}/{child}", watch=self._on_event)
        except NoNodeError:
            return ""
        return bytes(data).decode(errors="replace")

    def _on_event(self, event: Any) -> None:
        """Handles a watch event. Called by kazoo's thread, which must not block."""
        with self._changed:
            if event.path and event.path != self._path:
                self._unread.add(event.path.rpartition("/")[2])
            self._upkeep.changed()
        self._thread.wake()

    def _on_state(self, state: str) -> None:
        """Handles a change of the connection. Called by kazoo's thread, which must not block."""
        with self._changed:
            if state == KazooState.LOST:
                self._upkeep.lost()
            elif state == KazooState.SUSPENDED:
                self._upkeep.suspended()
            else:
                self._unread |= self._known.keys()
                self._upkeep.connected()
            self._changed.notify_all()
        self._thread.wake()

    def _keep_up(self) -> float | None:
        """Does the work that is due; returns the seconds until the next."""
        with self._changed:
            chores = self._upkeep.take(self._clock.monotonic())
        for path in chores.announce:
            self._repair(path)
        if chores.refresh:
            self._refresh()
        with self._changed:
            return self._upkeep.seconds_until_due(self._clock.monotonic())

    def _repair(self, path: str) -> None:
        with self._changed:
            addr = self._own.get(path)
        if addr is None:
            return
        try:
            is_ours = self._announce(path, addr, take_over=False)
        except Exception as err:  # noqa: BLE001 - without its thread this process would be dropped from the cluster
            _log.warning("zookeeper: cannot register %s again, next in %.0f s: %r", path, self._delay, err)
            with self._changed:
                self._upkeep.failed(path, self._clock.monotonic(), self._delay)
            return
        with self._changed:
            if self._own.get(path) != addr:
                return
            if is_ours:
                self._upkeep.registered(path, self._clock.monotonic())
            else:
                _log.warning("zookeeper: %s was registered by another process, which keeps it", path)
                del self._own[path]
                self._upkeep.removed(path)

    def _retry(self, call: Callable[[], object], what: str) -> None:
        for tries, pause in enumerate(Backoff(self._delay, self._delay, tries=self._max_tries), 1):
            try:
                # Without a connection kazoo would wait for one, however long that takes.
                if not self._client.connected:
                    raise ConnectionLoss("no connection to the servers")  # as kazoo's own
                call()
            except _WORTH_ANOTHER_TRY as err:
                if pause is None:
                    raise UnavailableError(f"zookeeper: cannot {what}, tried {tries} times: {err!r}") from err
                with self._changed:
                    self._changed.wait_for(lambda: self._thread.closed.is_set() or self._client.connected, pause)
            except KazooException as err:
                raise UnavailableError(f"zookeeper: cannot {what}: {err!r}") from err
            else:
                return

    def _stop_client(self) -> None:
        self._client.stop()
        self._client.close()
