"""Discovery on the MLP platform, from its environment variables."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.cluster.addresses import split_address
from monolith.cluster.discovery.service_discovery import ServiceDiscovery, check_entry
from monolith.cluster.liveness import check_port
from monolith.cluster.runtimes.mlp import MLPEnv
from monolith.errors import DeadlineExceededError

if TYPE_CHECKING:
    from monolith.clock import Clock

PORT_TIMEOUT_SECONDS = 3600.0
_PS = "ps"
_ROLES = ("ps", "worker", "chief")


class MLPServiceDiscovery(ServiceDiscovery):
    """Reads the platform's variables. Deregistering hides an entry from this process until it is registered again."""

    def __init__(self, env: MLPEnv | None = None, *, clock: Clock | None = None) -> None:
        self._env = env or MLPEnv()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._filters: set[tuple[str, int]] = set()

    def register(self, name: str, index: int, addr: str) -> None:
        """Shows an entry again that was hidden.

        Raises:
            ValueError: The platform has no such process, or gives it another port.
        """
        self._check(name, index, addr)
        with self._lock:
            self._filters.discard((name, index))

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Hides an entry.

        Raises:
            ValueError: The platform has no such process, or gives it another port.
        """
        self._check(name, index, addr)
        with self._lock:
            self._filters.add((name, index))

    def query(self, name: str, skip_port_check: bool = False) -> dict[int, str]:
        """Returns the addresses of a role; waits until each address of ``ps`` accepts a connection.

        Raises:
            ValueError: The platform has no such role.
            DeadlineExceededError: A server did not accept for an hour.
        """
        found = self._addrs(name)
        if name == _PS and not skip_port_check:
            for index, addr in found.items():
                if not check_port(*split_address(addr), PORT_TIMEOUT_SECONDS, clock=self._clock):
                    raise DeadlineExceededError(
                        f"MLP: ps {index} at {addr} did not accept a connection within {PORT_TIMEOUT_SECONDS:.0f} s; "
                        "check its log"
                    )
        return found

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of servers, workers and the chief, where there are any, without connecting to them."""
        return {name: found for name in _ROLES if (found := self._addrs(name))}

    def deregister_all(self) -> None:
        """Hides all entries."""
        with self._lock:
            self._filters.update((name, index) for name in _ROLES for index in range(self._env.num_replicas(name)))

    @property
    def server_type(self) -> str:
        """The role of this process."""
        return self._env.role.lower()

    @property
    def index(self) -> int:
        """The index of this process in its role."""
        return self._env.index

    @property
    def addr(self) -> str | None:
        """The address of this process."""
        return self._env.get_addr()

    def _addrs(self, name: str) -> dict[int, str]:
        if name not in _ROLES and name.upper() not in self._env.all_roles:
            raise ValueError(f"MLP: no role {name!r} in this job, which has {', '.join(sorted(self._env.all_roles))}")
        with self._lock:
            hidden = set(self._filters)
        return {
            index: addr
            for index in range(self._env.num_replicas(name))
            if (name, index) not in hidden and (addr := self._env.get_addr(name, index))
        }

    def _check(self, name: str, index: int, addr: str) -> None:
        check_entry(name, index, addr)
        if index >= self._env.num_replicas(name):
            raise ValueError(
                f"MLP: the platform has {self._env.num_replicas(name)} of role {name!r}, got index {index}"
            )
        port = self._env.get_port(name, index)
        if split_address(addr)[1] != port:
            raise ValueError(f"MLP: the platform gives {name} {index} the port {port}, got {addr}")
