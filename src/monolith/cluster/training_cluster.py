"""A training cluster as one of its processes sees it. Computes its members; does no I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.config import Config, config, require_at_least
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PS, _CHIEF, _WORKER = "ps", "chief", "worker"


@config
class ClusterRequest(Config):
    """The view of the cluster that a worker requests; worker 0 is the chief."""

    worker_addr: str
    """The address of this process."""
    index: int
    """The index of this process among the workers; 0 is the chief."""
    num_workers: int
    """Number of workers, including the chief."""
    num_required_ps: int
    """Number of parameter servers that training uses."""
    num_redundant_ps: int = 0
    """Number of additional spare servers; if not 0, the chief fixes the choice in a file."""
    model_dir: str = ""
    """Folder of that file; all workers must be able to reach it."""
    uuid: str = ""
    """Name of the run, which names that file."""
    model_name: str | None = None
    """The model that gauges are tagged with; None: no gauges."""
    cluster_type: str = "stable"
    """The other tag of the gauges."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "index", "num_required_ps", "num_redundant_ps")
        if self.index >= self.num_workers:
            raise ValueError(f"ClusterRequest: index must be below num_workers, got {self.index} of {self.num_workers}")
        if self.num_redundant_ps and not self.model_dir:
            raise ValueError("ClusterRequest: model_dir must be set with num_redundant_ps, got ''")

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self.index == 0


class TrainingCluster(NamedTuple):
    """Addresses by job, and which of them this process is: ``cluster`` and ``task`` of ``TF_CONFIG``."""

    cluster: dict[str, list[str]]
    task: dict[str, Any]

    def tf_config(self) -> str:
        """Returns the value of ``TF_CONFIG`` for code that shards its input by it."""
        return json.dumps({"cluster": self.cluster, "task": self.task})


def choose_ps(addrs: Mapping[int, str], num_required: int) -> list[str] | None:
    """Returns the servers to use, the first ones by index, or None while there are too few.

    >>> choose_ps({7: "c:1", 0: "a:1", 3: "b:1"}, 2)
    ['a:1', 'b:1']
    """
    if len(addrs) < num_required:
        return None
    return [addrs[index] for index in sorted(addrs)][:num_required]


def assemble(request: ClusterRequest, chief_addr: str, ps_addrs: Sequence[str]) -> TrainingCluster:
    """Returns the cluster as this process sees it.

    Workers never talk to each other, so the list of workers holds placeholders ``0.0.0.0:<i>`` and, at a worker's own
    index, its address.

    Raises:
        FailedPreconditionError: The number of servers is not the one required.
    """
    if len(ps_addrs) != request.num_required_ps:
        raise FailedPreconditionError(
            f"training cluster: {request.num_required_ps} parameter servers are required, got {len(ps_addrs)}: "
            f"{', '.join(ps_addrs) or 'none'}"
        )
    workers = [f"0.0.0.0:{number}" for number in range(1, request.num_workers)]
    if not request.is_chief:
        workers[request.index - 1] = request.worker_addr
    task = {"type": _CHIEF, "index": 0} if request.is_chief else {"type": _WORKER, "index": request.index - 1}
    return TrainingCluster({_CHIEF: [chief_addr], _WORKER: workers, _PS: list(ps_addrs)}, task)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The peers that a process may talk to; without a cluster, only itself."""

    cluster: dict[str, list[str]] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    device_filters: tuple[str, ...] = ()
    """``/job:<job>`` for all processes of a job, ``/job:<job>/task:<index>`` for one; empty means no limit."""

    def may_talk_to(self, job: str, index: int) -> bool:
        """Returns whether a process of the cluster is a peer."""
        if index >= len(self.cluster.get(job, [])):
            return False
        return f"/job:{job}" in self.device_filters or f"/job:{job}/task:{index}" in self.device_filters


def generate_session_config(
    cluster_and_task: tuple[dict[str, list[str]], dict[str, Any]] | None = None,
) -> SessionConfig:
    """Returns the peers of a process: all servers, the chief, and the worker itself; none without a cluster."""
    if cluster_and_task is None:
        return SessionConfig()
    cluster, task = cluster_and_task
    filters = [f"/job:{_PS}", f"/job:{_CHIEF}"]
    if task["type"] != _CHIEF:
        filters.append(f"/job:{task['type']}/task:{task['index']}")
    return SessionConfig(cluster, task, tuple(filters))
