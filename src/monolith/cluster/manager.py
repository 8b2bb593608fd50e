"""Finds the cluster that a process trains in: polls discovery until all required processes are registered."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from monolith.clock import SystemClock
from monolith.cluster.training_cluster import ClusterRequest, TrainingCluster, assemble, choose_ps
from monolith.errors import DeadlineExceededError
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
