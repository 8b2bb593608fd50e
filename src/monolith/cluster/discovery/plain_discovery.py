"""Discovery without a service: a fixed list, ``TF_CONFIG``, the variables of MLP, files in a shared folder."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from monolith.clock import SystemClock
from monolith.cluster.addresses import split_address
from monolith.cluster.discovery.service_discovery import ScheduledDiscovery, ServiceDiscovery, check_entry, check_role
from monolith.cluster.liveness import check_port
from monolith.cluster.runtimes.mlp import MLPEnv
from monolith.errors import DeadlineExceededError
from monolith.files import text_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.clock import Clock


class StaticServiceDiscovery(ServiceDiscovery):
    """A fixed list of addresses for each role, in the order of their indices; registering does nothing.

    >>> StaticServiceDiscovery({"ps": ["10.0.0.1:2222", "10.0.0.2:2222"]}).query("ps")
    {0: '10.0.0.1:2222', 1: '10.0.0.2:2222'}
    """

    def __init__(self, addrs: Mapping[str, Sequence[str]]) -> None:
        """Keeps a copy of the lists.

        Raises:
            ValueError: A role or an address is malformed.
        """
        for name, listed in addrs.items():
            for index, addr in enumerate(listed):
                check_entry(name, index, addr)
        self._addrs = {name: dict(enumerate(listed)) for name, listed in addrs.items()}

    def register(self, name: str, index: int, addr: str) -> None:
        """Does nothing: the list is fixed."""

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Does nothing: the list is fixed."""

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of a role by index.

        Raises:
            ValueError: The list has no such role.
        """
        if name not in self._addrs:
            raise ValueError(f"discovery: no role {name!r} in the list, which has {', '.join(self._addrs) or 'none'}")
        return dict(self._addrs[name])

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns all roles that have addresses."""
        return {name: dict(listed) for name, listed in self._addrs.items() if listed}


_PS, _WORKER, _CHIEF = "ps", "worker", "chief"


class TfConfigServiceDiscovery(ScheduledDiscovery):
    """Reads ``{"cluster": {"chief": [...], "ps": [...], "worker": [...]}, "task": {"type": ..., "index": ...}}``.

    The chief is worker 0: where a chief is listed, the workers of the config come after it. Registering does nothing,
    since the scheduler has placed all processes.

    >>> cluster = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}
    >>> discovery = TfConfigServiceDiscovery({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    >>> discovery.query("worker"), discovery.server_type, discovery.index, discovery.addr
    ({0: 'a:1', 1: 'c:1'}, 'worker', 1, 'c:1')
    """

    def __init__(self, tf_config: Mapping[str, Any] | str) -> None:
        """Accepts the config as a mapping or as its JSON.

        Raises:
            ValueError: It has another shape, or the task is not one of the cluster's.
        """
        config = json.loads(tf_config) if isinstance(tf_config, str) else tf_config
        try:
            self._cluster = {str(job): [str(addr) for addr in addrs] for job, addrs in config["cluster"].items()}
            self._task_type, self._task_index = str(config["task"]["type"]), int(config["task"]["index"])
        except (KeyError, TypeError, AttributeError, OverflowError) as err:
            shape = '{"cluster": {job: [address, ...]}, "task": {"type": job, "index": number}}'
            raise ValueError(f"TF_CONFIG: expected {shape}, got {config!r}") from err
        if not 0 <= self._task_index < len(self._cluster.get(self._task_type, [])):
            raise ValueError(
                f"TF_CONFIG: task {self._task_type} {self._task_index} is not in the cluster, which has "
                f"{ {job: len(addrs) for job, addrs in self._cluster.items()} }"
            )

    def register(self, name: str, index: int, addr: str) -> None:
        """Does nothing: the scheduler has fixed all addresses."""

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Does nothing: the scheduler has fixed all addresses."""

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of ``ps``, or of ``worker`` with the chief first.

        Raises:
            ValueError: The role is another one.
        """
        if name == _PS:
            return dict(enumerate(self._cluster.get(_PS, [])))
        if name == _WORKER:
            return dict(enumerate(self._cluster.get(_CHIEF, []) + self._cluster.get(_WORKER, [])))
        raise ValueError(f"TF_CONFIG: name must be {_PS!r} or {_WORKER!r}, got {name!r}")

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of ``ps`` and ``worker``, where there are any."""
        return {name: addrs for name in (_PS, _WORKER) if (addrs := self.query(name))}

    @property
    def server_type(self) -> str:
        """The role of this process: a chief is a worker."""
        return _WORKER if self._task_type == _CHIEF else self._task_type

    @property
    def addr(self) -> str:
        """The address of this process."""
        return self._cluster[self._task_type][self._task_index]

    @property
    def index(self) -> int:
        """The index of this process within its role: workers count from 1 where there is a chief."""
        behind_chief = self._task_type == _WORKER and bool(self._cluster.get(_CHIEF))
        return self._task_index + len(self._cluster[_CHIEF]) if behind_chief else self._task_index


PORT_TIMEOUT_SECONDS = 3600.0
_ROLES = (_PS, _WORKER, _CHIEF)


class MLPServiceDiscovery(ScheduledDiscovery):
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
        addrs = self._addrs(name)
        if name == _PS and not skip_port_check:
            for index, addr in addrs.items():
                if not check_port(*split_address(addr), PORT_TIMEOUT_SECONDS, clock=self._clock):
                    raise DeadlineExceededError(
                        f"MLP: ps {index} at {addr} did not accept a connection within {PORT_TIMEOUT_SECONDS:.0f} s; "
                        "check its log"
                    )
        return addrs

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of servers, workers and the chief, where there are any, without connecting to them."""
        return {name: addrs for name in _ROLES if (addrs := self._addrs(name))}

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


class HostServiceDiscovery(ServiceDiscovery):
    """Keeps the address of each process in the file ``<base>/<name>/<index>``; ``base`` is any fsspec path.

    Files are replaced atomically. They stay when a process dies: a restarted process overwrites its own, and a new run
    in the same folder has to empty it first, or use another one.
    """

    def __init__(self, base: str) -> None:
        if not base:
            raise ValueError("host files: base must be a folder that all processes reach, got ''")
        self._base = base.rstrip("/")

    def register(self, name: str, index: int, addr: str) -> None:
        """Writes the address to the file of its index."""
        check_entry(name, index, addr)
        text_files.write_text(self._file(name, index), addr)

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Removes the file if it still holds this address."""
        check_entry(name, index, addr)
        if text_files.read_text(self._file(name, index)) == addr:
            text_files.remove(self._file(name, index))

    def query(self, name: str) -> dict[int, str]:
        """Reads the addresses of a role from its files."""
        check_role(name)
        indices = sorted(int(file) for file in text_files.names_in(f"{self._base}/{name}") if file.isdecimal())
        # A file may be removed between the listing and the reading.
        return {index: addr for index in indices if (addr := text_files.read_text(self._file(name, index)))}

    def query_all(self) -> dict[str, dict[int, str]]:
        """Reads the addresses of all roles from their files."""
        return {name: addrs for name in text_files.names_in(self._base) if (addrs := self.query(name))}

    def _file(self, name: str, index: int) -> str:
        return f"{self._base}/{name}/{index}"
