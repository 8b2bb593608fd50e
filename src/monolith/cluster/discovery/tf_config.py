"""Discovery from ``TF_CONFIG``, as Primus and Kubernetes operators pass it to every process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from monolith.cluster.discovery.service_discovery import ServiceDiscovery

if TYPE_CHECKING:
    from collections.abc import Mapping

_PS, _WORKER, _CHIEF = "ps", "worker", "chief"


class TfConfigServiceDiscovery(ServiceDiscovery):
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
        return {name: found for name in (_PS, _WORKER) if (found := self.query(name))}

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
