"""Finds the cluster that a process trains in: polls discovery until all required processes are registered.

`TrainingCluster` is the cluster as one of its processes sees it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from monolith.clock import SystemClock
from monolith.config import Config, config, require_at_least
from monolith.errors import DeadlineExceededError, FailedPreconditionError
from monolith.files import text_files
from monolith.observe import MetricClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.clock import Clock
    from monolith.cluster.discovery import ServiceDiscovery

POLL_SECONDS = 5.0
"""Interval of queries for missing processes, and of the log lines that report them."""
READ_TIMEOUT_SECONDS = 1800.0


def get_ps_cluster_file_name(model_dir: str, uuid: str | None = None) -> str:
    """Returns the file of a run: ``<model_dir>/ps_cluster_dir/<uuid>``, or ``ps_info`` for a run without a name.

    >>> get_ps_cluster_file_name("/models/ranker", "run-7")
    '/models/ranker/ps_cluster_dir/run-7'
    """
    return f"{model_dir.rstrip('/')}/ps_cluster_dir/{uuid or 'ps_info'}"


def save_ps_cluster_to_file(file_name: str, ps_addrs: Sequence[str]) -> None:
    """Writes the addresses, separated by commas. Readers see the old list or the new one."""
    text_files.write_text(file_name, ",".join(ps_addrs))


def fetch_ps_cluster_from_file(
    file_name: str,
    timeout: float = READ_TIMEOUT_SECONDS,
    *,
    num_required: int | None = None,
    clock: Clock | None = None,
) -> list[str]:
    """Returns the addresses in the file, polling every 5 s; none if the file does not appear in time.

    With ``num_required`` a list of another length, left by a former run, is ignored. With a timeout of 0 the file is
    read once.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout
    while True:
        addrs = [addr for addr in (text_files.read_text(file_name) or "").split(",") if addr]
        if addrs and num_required in {None, len(addrs)}:
            return addrs
        if clock.monotonic() >= deadline:
            return []
        clock.sleep(min(POLL_SECONDS, deadline - clock.monotonic()))


_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_FIRST_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Result of a query that did not find enough processes."""

    role: str
    num_found: int
    num_needed: int
    error: Exception | None
    """The error of discovery, if it failed."""
    waited_seconds: float


def poll_seconds(missing: Incomplete) -> float:
    """Returns the seconds until the next query of a process: short at first, since most processes start together.

    >>> [round(poll_seconds(Incomplete("ps", 0, 2, None, waited)), 2) for waited in (0, 2, 60)]
    [0.1, 0.6, 5.0]
    """
    return min(POLL_SECONDS, _FIRST_POLL_SECONDS + missing.waited_seconds / 4)


def emit_store(name: str, value: float, tagkv: Mapping[str, object] | None = None) -> None:
    """Sets a gauge of this process, under ``monolith.containers``."""
    MetricClient("monolith.containers").emit_store(name, value, tagkv)


def get_training_cluster(
    discovery: ServiceDiscovery,
    request: ClusterRequest,
    *,
    failure_handler: Callable[[Incomplete], None] | None = None,
    timeout_seconds: float | None = None,
    clock: Clock | None = None,
) -> TrainingCluster:
    """Waits until the chief and the parameter servers are registered, and returns the cluster as this process sees it.

    The chief takes the first ``num_required_ps`` servers by index. With redundant servers the chief reuses the list in
    the file of this run if the list has the right length, so that a restarted chief uses the same servers in the same
    order. Otherwise the chief chooses servers and writes the list. Workers read the file, waiting up to 1800 s.

    Discovery is polled every 5 s without limit. ``failure_handler`` replaces the 5 s pause between two queries, and may
    raise to cancel; ``timeout_seconds`` limits each wait.

    Raises:
        DeadlineExceededError: A wait took longer than ``timeout_seconds``.
        FailedPreconditionError: The number of servers is not the one required.
    """
    poll = _Poll(discovery, failure_handler, timeout_seconds, clock or SystemClock())
    file_name = get_ps_cluster_file_name(request.model_dir, request.uuid)
    if request.is_chief:
        chief_addr = request.worker_addr
        ps_addrs = _ps_of_chief(poll, request, file_name)
    else:
        chief_addr = poll.until("worker", lambda addrs: addrs.get(0), num_needed=1)
        ps_addrs = _ps_of_worker(poll, request, file_name)
    return assemble(request, chief_addr, ps_addrs)


def _ps_of_chief(poll: _Poll, request: ClusterRequest, file_name: str) -> list[str]:
    if not request.num_redundant_ps:
        return _query_ps_cluster(poll, request)
    kept = fetch_ps_cluster_from_file(file_name, 0, clock=poll.clock)
    if len(kept) == request.num_required_ps:
        _log.info("training cluster: keeping the servers in %s", file_name)
        return kept
    chosen = _query_ps_cluster(poll, request)
    save_ps_cluster_to_file(file_name, chosen)
    return chosen


def _ps_of_worker(poll: _Poll, request: ClusterRequest, file_name: str) -> list[str]:
    if not request.num_redundant_ps:
        return _query_ps_cluster(poll, request)
    return fetch_ps_cluster_from_file(file_name, num_required=request.num_required_ps, clock=poll.clock)


def _query_ps_cluster(poll: _Poll, request: ClusterRequest) -> list[str]:
    def report(num_found: int, *, waiting: bool) -> None:
        if request.model_name:
            tags = {"model_name": request.model_name, "cluster_type": request.cluster_type}
            emit_store("num_left_ps", max(0, request.num_required_ps - num_found), tags)
            emit_store("job_waiting", int(waiting), tags)

    def choose(addrs: dict[int, str]) -> list[str] | None:
        chosen = choose_ps(addrs, request.num_required_ps)
        report(len(addrs), waiting=chosen is None)
        return chosen

    return poll.until("ps", choose, num_needed=request.num_required_ps)


class _Poll:
    """Polls discovery with the timeout and the failure handler of one `get_training_cluster` call."""

    def __init__(
        self,
        discovery: ServiceDiscovery,
        failure_handler: Callable[[Incomplete], None] | None,
        timeout_seconds: float | None,
        clock: Clock,
    ) -> None:
        self.clock = clock
        self._discovery = discovery
        self._failure_handler = failure_handler or (lambda _: clock.sleep(POLL_SECONDS))
        self._timeout_seconds = timeout_seconds

    def until(self, role: str, choose: Callable[[dict[int, str]], _T | None], *, num_needed: int) -> _T:
        """Queries a role until ``choose`` returns a value other than None."""
        begin = next_line = self.clock.monotonic()
        while True:
            error: Exception | None = None
            addrs: dict[int, str] = {}
            try:
                addrs = self._discovery.query(role)
            except Exception as err:  # noqa: BLE001 - the service may recover, whatever it raises until then
                error = err
            if error is None and (chosen := choose(addrs)) is not None:
                return chosen
            waited = self.clock.monotonic() - begin
            missing = Incomplete(role, len(addrs), num_needed, error, waited)
            if begin + waited >= next_line:
                level = logging.INFO if error is None else logging.WARNING
                _log.log(level, "training cluster: %d of %d %s after %.0f s%s", *_progress(missing))
                next_line = begin + waited + POLL_SECONDS
            if self._timeout_seconds is not None and waited >= self._timeout_seconds:
                raise DeadlineExceededError(
                    f"training cluster: found {len(addrs)} of {num_needed} {role} in {waited:.0f} s"
                    + (f", last error: {error!r}" if error else "")
                )
            self._failure_handler(missing)


def _progress(missing: Incomplete) -> tuple[object, ...]:
    reason = f", discovery failed: {missing.error!r}" if missing.error else ""
    return missing.num_found, missing.num_needed, missing.role, missing.waited_seconds, reason


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
class SessionPeers:
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
) -> SessionPeers:
    """Returns the peers of a process: all servers, the chief, and the worker itself; none without a cluster."""
    if cluster_and_task is None:
        return SessionPeers()
    cluster, task = cluster_and_task
    filters = [f"/job:{_PS}", f"/job:{_CHIEF}"]
    if task["type"] != _CHIEF:
        filters.append(f"/job:{task['type']}/task:{task['index']}")
    return SessionPeers(cluster, task, tuple(filters))
