"""Discovery through a named actor of a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import uuid
from typing import TYPE_CHECKING, Any

from monolith.clock import SystemClock
from monolith.cluster.discovery.service_discovery import ServiceDiscovery, check_entry, start_heartbeat
from monolith.cluster.runtimes.ray import NAMESPACE, load_ray
from monolith.errors import UnavailableError

if TYPE_CHECKING:
    from monolith.background import PeriodicThread
    from monolith.clock import Clock

_log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
"""How long after its last heartbeat a process is still listed."""
_BEAT_SECONDS = 1.0
_CALL_SECONDS = 10.0


Entry = tuple[str, int, str]
"""Role, index, address."""


class RegistryActor:
    """The registry actor of a job: addresses by role and index, each kept while its process sends heartbeats.

    A process identifies itself by a name that it chose. A process without a heartbeat for the length of a lease is
    removed with all of its entries; its next heartbeat returns False, and it may claim the entries that no other
    process has taken since. The calls never block. Not thread-safe.
    """

    def __init__(self, lease_seconds: float = LEASE_SECONDS, *, clock: Clock | None = None) -> None:
        if not lease_seconds > 0:
            raise ValueError(f"ray registry: lease_seconds must be > 0, got {lease_seconds}")
        self._lease = lease_seconds
        self._clock = clock or SystemClock()
        self._heard: dict[str, float] = {}
        self._held: dict[tuple[str, int], tuple[str, str]] = {}

    def register(self, client: str, entry: Entry) -> None:
        """Makes an address the holder of an index, replacing any other holder."""
        self._heard[client] = self._clock.monotonic()
        role, index, addr = entry
        self._held[role, index] = (addr, client)

    def deregister(self, entry: Entry) -> None:
        """Releases an index. Does nothing when another address holds it."""
        role, index, addr = entry
        if self._held.get((role, index), ("", ""))[0] == addr:
            del self._held[role, index]

    def beat(self, client: str) -> bool:
        """Records a heartbeat; returns False if the process is not registered (any more)."""
        now = self._forget()
        if client in self._heard:
            self._heard[client] = now
        return client in self._heard

    def claim(self, client: str, entries: list[Entry]) -> list[Entry]:
        """Restores the entries of a process, and returns those that another process has taken since."""
        self._heard[client] = self._forget()
        return [
            (role, index, addr)
            for role, index, addr in entries
            if self._held.setdefault((role, index), (addr, client)) != (addr, client)
        ]

    def leave(self, client: str) -> None:
        """Removes a process and all of its entries."""
        self._heard.pop(client, None)
        self._held = {place: held for place, held in self._held.items() if held[1] != client}

    def addresses(self) -> dict[str, dict[int, str]]:
        """Returns all addresses: role, then index, in order."""
        self._forget()
        addrs: dict[str, dict[int, str]] = {}
        for (role, index), (addr, _) in sorted(self._held.items()):
            addrs.setdefault(role, {})[index] = addr
        return addrs

    def _forget(self) -> float:
        """Removes processes whose leases have expired; returns the time."""
        now = self._clock.monotonic()
        for client in [client for client, heard in self._heard.items() if now - heard > self._lease]:
            self.leave(client)
        return now


def start_registry(
    name: str,
    namespace: str = NAMESPACE,
    *,
    actor: type[RegistryActor] = RegistryActor,
    lease_seconds: float = LEASE_SECONDS,
    outlives_us: bool = False,
) -> Any:
    """Starts the registry actor of a job. Ray restarts it when it dies; all processes then claim their entries again.

    Args:
        name: Name of the actor, unique for each job.
        namespace: Ray namespace of the name.
        actor: Class of the actor; a subclass may add methods.
        lease_seconds: How long a process is listed after its last heartbeat.
        outlives_us: Whether the actor survives this process until it is killed (a detached actor); else it ends with
            this process, however that ends.

    Raises:
        ValueError: The name is taken; the message is Ray's.
    """
    ray = _connected_ray()
    if outlives_us:
        options: dict[str, Any] = {"lifetime": "detached"}
    else:
        # On our own node: an actor tied to this process must not die with another node.
        here = ray.get_runtime_context().get_node_id()
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        options = {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node_id=here, soft=False)}
    remote = ray.remote(actor).options(
        name=name, namespace=namespace, num_cpus=0, max_restarts=-1, max_task_retries=-1, **options
    )
    handle = remote.remote(lease_seconds)
    ray.get(handle.addresses.remote())
    return handle


class RayServiceDiscovery(ServiceDiscovery):
    """Discovery through the named actor that `start_registry` made, for any process that is connected to Ray.

    A registered process sends a heartbeat every second, and is dropped ten seconds after its last one. When the actor
    itself was lost, every process claims its indices again.

    Args:
        name: Name of the actor.
        namespace: Ray namespace of the name.
        beat_seconds: Interval of heartbeats.
        timeout_seconds: Timeout of a call to the actor.
    """

    def __init__(
        self,
        name: str,
        namespace: str = NAMESPACE,
        *,
        beat_seconds: float = _BEAT_SECONDS,
        timeout_seconds: float = _CALL_SECONDS,
    ) -> None:
        if not name:
            raise ValueError("ray discovery: name must be that of the job's actor, got ''")
        self._ray = _connected_ray()
        self._name = name
        self._namespace = namespace
        self._beat_seconds = beat_seconds
        self._timeout_seconds = timeout_seconds
        self._client = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._handle: Any = None
        self._own: dict[tuple[str, int], str] = {}
        self._heartbeat: PeriodicThread | None = None

    def register(self, name: str, index: int, addr: str) -> None:
        """Registers at the actor, and keeps sending heartbeats.

        Raises:
            UnavailableError: The actor does not answer; nothing was registered.
        """
        check_entry(name, index, addr)
        self._call("register", self._client, (name, index, addr))
        with self._lock:
            self._own[name, index] = addr
            if self._heartbeat is None:
                self._heartbeat = start_heartbeat(
                    self._beat,
                    self._claim,
                    name=f"ray-{self._name}",
                    interval_seconds=self._beat_seconds,
                    retry_seconds=self._beat_seconds,
                )

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Deregisters the entry if the actor still lists this address."""
        check_entry(name, index, addr)
        with self._lock:
            if self._own.get((name, index)) == addr:
                del self._own[name, index]
        self._call("deregister", (name, index, addr))

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of all roles, as the actor has them now.

        Raises:
            UnavailableError: The actor does not answer.
        """
        addrs: dict[str, dict[int, str]] = self._call("addresses")
        return addrs

    def close(self) -> None:
        """Releases all indices at the actor; if the actor does not answer, they expire with the lease."""
        with self._lock:
            heartbeat, self._heartbeat = self._heartbeat, None
            self._own.clear()
        if heartbeat is not None:
            heartbeat.close()
            with contextlib.suppress(UnavailableError):
                self._call("leave", self._client)

    def _beat(self) -> bool:
        return bool(self._call("beat", self._client))

    def _claim(self) -> bool:
        with self._lock:
            entries = [(name, index, addr) for (name, index), addr in self._own.items()]
        for name, index, addr in self._call("claim", self._client, entries):
            _log.warning("ray: %s %d was registered by another process, which keeps it", name, index)
            with self._lock:
                if self._own.get((name, index)) == addr:
                    del self._own[name, index]
        return True

    def _call(self, method: str, *arguments: object) -> Any:
        """Calls the actor. If it has died, looks the name up again: another process may have started a new one."""
        errors = self._ray.exceptions
        try:
            try:
                return self._ask(method, arguments)
            except errors.ActorDiedError:
                self._handle = None
                return self._ask(method, arguments)
        except (errors.RayError, ValueError, ConnectionError) as error:
            self._handle = None
            raise UnavailableError(
                f"ray: cannot {method}: the actor {self._name!r} of namespace {self._namespace!r} does not answer:"
                f" {str(error).partition(chr(10))[0]}"
            ) from error

    def _ask(self, method: str, arguments: tuple[object, ...]) -> Any:
        handle = self._handle
        if handle is None:
            handle = self._handle = self._ray.get_actor(self._name, namespace=self._namespace)
        return self._ray.get(getattr(handle, method).remote(*arguments), timeout=self._timeout_seconds)


def _connected_ray() -> Any:
    ray = load_ray()
    if not ray.is_initialized():
        raise RuntimeError(
            "ray discovery: this process is not connected to a Ray cluster; call ray.init(address=...) before"
        )
    return ray
