"""A process of a job that is a worker: finds the others, trains with them, and tries again when it loses them."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from monolith import environment
from monolith.cluster import (
    ClusterRequest,
    LivenessPort,
    NodeAliveChecker,
    NodeAliveCheckerError,
    get_training_cluster,
    poll_seconds,
)
from monolith.errors import CancelledError, DeadlineExceededError, OpError, UnavailableError
from monolith.hooks import PsHealthHook
from monolith.job import JobClient
from monolith.observe import MetricClient
from monolith.ps.client import PsCluster
from monolith.stop_request import StopRequest
from monolith.train.roles.debugging_info import DebuggingInfoHook
from monolith.train.roles.place import ServerPlaces
from monolith.train.roles.preparation import on_signals
from monolith.train.roles.ps_benchmark import choose_servers
from monolith.train.roles.server_watch import ServerReconnector, ServerWatch
from monolith.train.strategies.servers import ParameterServers
from monolith.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.clock import Clock
    from monolith.cluster import Incomplete, TrainingCluster
    from monolith.hook import Hook
    from monolith.train.config.job_config import JobProgramConfig
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.parameters.params import Params
    from monolith.train.roles.place import RolePlace


class JobMetrics:
    """Metrics of the startup time of a job, and of the retries of a worker."""

    def __init__(
        self, config: TrainerConfig, worker_index: int, *, clock: Clock, metrics: MetricClient | None = None
    ) -> None:
        self._model_name = config.model_name or ""
        self._cluster_type = config.reporting.cluster_type
        self._submit_time = config.reporting.submit_time if worker_index == 0 else None
        self._worker_index = worker_index
        self._clock = clock
        self._metrics = metrics or MetricClient()

    def containers_ready(self) -> None:
        """Reports once, on the chief, how long it took until all processes were up, if the start time is set."""
        if self._submit_time is not None:
            elapsed = max(self._clock.now() - self._submit_time, 0.0)
            tags = {"model_name": self._model_name, "cluster_type": self._cluster_type}
            self._metrics.emit_timer("container_ready_elapsed_time.all", elapsed, tags)
            self._submit_time = None

    def failed_over(self, count: int) -> None:
        """Reports that a worker has restarted `count` times."""
        tags = {"model_name": self._model_name, "worker_index": self._worker_index}
        self._metrics.emit_timer("worker_failover_cnt", count, tags)


_log = logging.getLogger(__name__)

_NODE_CHECK_SECONDS = 60.0
_NODE_LOOK_SECONDS = 0.5
_CALL_SECONDS = 60.0
_LOST_SECONDS = 0.5
"""Seconds without a connection after which a server is looked up again, at whatever address it restarted."""
_RETRIED = (DeadlineExceededError, UnavailableError)


class _ChosenMeanwhileError(Exception):
    """Raised when the servers of the job are already chosen, although not all started ones are up."""


class WorkerRole:
    """One worker, from its start to the end of its job."""

    _lost_seconds = _LOST_SECONDS

    def __init__(
        self,
        place: RolePlace,
        params: Params,
        config: TrainerConfig,
        *,
        hooks: Sequence[Hook] = (),
        clock: Clock,
        program: JobProgramConfig,
    ) -> None:
        self._place = place
        self._params = params
        self._config = config
        self._hooks = hooks
        self._clock = clock
        self._program = program
        self._places = ServerPlaces(place)
        self._metrics = JobMetrics(config, place.index, clock=clock)
        self._failures = 0

    def run(self) -> Trainer:
        """Trains to the end of the job; retries attempts that fail because other processes are unavailable.

        Raises:
            OpError: the cluster changed too often.
        """
        with LivenessPort(self._place.address) as presence:
            self._place.discovery.register("worker", self._place.index, presence.address)
            try:
                return self._attempts(presence.address)
            finally:
                self._place.discovery.deregister("worker", self._place.index, presence.address)

    def _attempts(self, address: str) -> Trainer:
        retries = 0
        members: tuple[int, ...] | None = None
        while True:
            cluster = self._assemble(address)
            self._metrics.containers_ready()
            now = self._places.members
            if members is not None and now != members:
                retries += 1
                if retries > self._place.settings.most_retries:
                    raise UnavailableError(
                        f"worker {self._place.index}: the servers of the job are others than before ({members}, now"
                        f" {now}), {retries} times; allowed are {self._place.settings.most_retries} (max_retry_times)"
                    )
            members = now
            try:
                return self._attempt(cluster, address)
            except _RETRIED as error:
                self._note_failure(error)

    def _note_failure(self, error: OpError) -> None:
        self._failures += 1
        self._metrics.failed_over(self._failures)
        wait = self._place.settings.retry_wait_seconds
        _log.warning(
            "worker %d: attempt %d ended (%s); trying again in %g s", self._place.index, self._failures, error, wait
        )
        self._clock.sleep(wait)

    # Finding the others

    def _assemble(self, address: str) -> TrainingCluster:
        """Waits until the chief and enough servers are up, and assigns indices to the servers.

        If a server dies after discovery, the attempt fails.
        """
        while True:
            try:
                cluster, is_open = self._find_others(address)
            except _ChosenMeanwhileError:
                continue
            try:
                servers = self._choose(cluster.cluster["ps"]) if is_open else cluster.cluster["ps"]
                self._places.take(servers)
            except _RETRIED as error:
                self._note_failure(error)
                self._places.addresses()  # the chief replaces a lost server by a standby
            else:
                return cluster._replace(cluster={**cluster.cluster, "ps": servers})

    def _find_others(self, address: str) -> tuple[TrainingCluster, bool]:
        """Returns the cluster, and whether its servers are still to be chosen among those that are up."""
        settings = self._place.settings
        # An earlier choice holds: its extra servers were dismissed, and others may have restarted at another address.
        chosen = self._places.chosen() if self._place.has_standbys else None
        is_open = bool(settings.num_extra_ps) and chosen is None
        request = ClusterRequest(
            worker_addr=address,
            index=self._place.index,
            num_workers=self._place.num_workers,
            num_required_ps=self._place.num_ps + (settings.num_extra_ps if is_open else 0),
            num_redundant_ps=0 if chosen else settings.num_redundant_ps,
            model_dir=self._place.model_dir,
            uuid=settings.uuid,
            model_name=self._config.model_name or None,
            cluster_type=self._config.reporting.cluster_type,
        )
        cluster = get_training_cluster(
            self._place.discovery,
            request,
            failure_handler=self._look_for_choice if is_open else self._wait_for_others,
            timeout_seconds=settings.session_creation_timeout_seconds,
            clock=self._clock,
        )
        return (cluster._replace(cluster={**cluster.cluster, "ps": chosen}) if chosen else cluster), is_open

    def _look_for_choice(self, missing: Incomplete) -> None:
        """Checks for an earlier choice between two polls for all servers: dismissed extra servers never register."""
        if self._places.chosen() is not None:
            raise _ChosenMeanwhileError
        self._wait_for_others(missing)

    def _wait_for_others(self, missing: Incomplete) -> None:
        handler = self._program.query_failure_handler
        if handler is None:
            self._clock.sleep(poll_seconds(missing))
        else:
            handler(missing)

    def _choose(self, servers: list[str]) -> list[str]:
        """Returns the fastest servers; the chief dismisses the others."""
        return choose_servers(
            servers,
            self._place.num_ps,
            num_workers=self._place.num_workers,
            index=self._place.index,
            secs=self._program.benchmark_seconds,
            token=self._place.token,
            model_dir=self._place.model_dir,
        )

    def _require_nodes(self, cluster: TrainingCluster) -> None:
        """Waits until the chief and the servers listen; servers that restart elsewhere later are looked up on demand.

        Raises:
            NodeAliveCheckerError: some do not listen within the timeout.
        """
        end = self._clock.monotonic() + self._node_seconds
        while True:
            servers = dict(enumerate(cluster.cluster["ps"])) | self._places.addresses()
            addresses = [servers[place] for place in sorted(servers)][: self._place.num_ps]
            chief = self._place.discovery.query("worker").get(0, cluster.cluster["chief"][0])
            dead = NodeAliveChecker({*addresses, chief}, timeout=_NODE_CHECK_SECONDS / 10).get_dead_nodes()
            if not dead:
                cluster.cluster["ps"][:] = addresses
                return
            if self._clock.monotonic() >= end:
                raise NodeAliveCheckerError(
                    f"worker {self._place.index}: {', '.join(dead)} did not listen for {self._node_seconds:g} s; are"
                    " these processes of the job up?"
                )
            self._clock.sleep(_NODE_LOOK_SECONDS)

    @property
    def _node_seconds(self) -> float:
        """Returns the timeout for processes that do not listen, per attempt."""
        return _NODE_CHECK_SECONDS

    # Training

    def _attempt(self, cluster: TrainingCluster, address: str) -> Trainer:
        self._require_nodes(cluster)
        settings = self._place.settings
        with ExitStack() as stack:
            stop = StopRequest()
            servers, back = self._open_servers(stack, cluster, stop)
            client = stack.enter_context(
                JobClient(
                    servers,
                    role="worker",
                    index=self._place.index,
                    num_workers=self._place.num_workers,
                    address=address,
                )
            )
            stack.enter_context(tf_config(cluster.tf_config()))
            part = ParameterServers(servers, client, settings, servers_back=back, clock=self._clock, stop=stop)
            hooks = list(self._hooks)
            if part.is_chief:
                hooks.insert(0, DebuggingInfoHook(self._place.model_dir, address, servers, self._place.num_workers))
                part.health_hook = PsHealthHook(servers, client.barrier, pauses_chief=self._config.control is None)
            trainer = Trainer(self._params.instantiate(), self._config, hooks=hooks, clock=self._clock, strategy=part)
            stack.enter_context(
                on_signals(lambda number: self._on_signal(number, part), signals=(signal.SIGINT, signal.SIGTERM))
            )
            with self._ended_without_servers(servers):
                trainer.train(max_steps=self._program.max_steps)
            part.end_job()
            trainer.release_state()
            if part.stop_requested and self._program.on_stop is not None:
                self._program.on_stop()
            return trainer

    def _open_servers(
        self, stack: ExitStack, cluster: TrainingCluster, stop: StopRequest
    ) -> tuple[PsCluster, ServerReconnector]:
        """Connects to the servers, and reconnects to lost ones until the stack is closed."""
        servers = stack.enter_context(
            PsCluster(
                cluster.cluster["ps"],
                token=self._place.token,
                timeout_seconds=self._place.settings.operation_timeout_seconds or _CALL_SECONDS,
                lost_after_seconds=self._lost_seconds,
            )
        )
        back = ServerReconnector(servers, self._places.addresses, clock=self._clock)
        stack.enter_context(ServerWatch(servers, back, stop))
        return servers, back

    @contextmanager
    def _ended_without_servers(self, servers: PsCluster) -> Iterator[None]:
        """Raises a uniform error if `ServerWatch` has abandoned a server, as calls in flight fail in many ways."""
        try:
            yield
        except OpError as error:
            if not servers.is_closed:
                raise
            raise CancelledError(
                f"worker {self._place.index}: stopped without a last save, because a parameter server is unavailable"
                f" ({error}); training resumes at the last checkpoint"
            ) from error

    def _on_signal(self, number: int, part: ParameterServers) -> None:
        """Stops the job on Ctrl-C, or on any signal to the chief; otherwise only this worker."""
        if number == signal.SIGINT or part.is_chief:
            _log.warning("worker %d: requests the job to stop; the next signal ends this process", self._place.index)
            part.stop_job()
        else:
            _log.warning("worker %d: leaves the job after this step", self._place.index)
            part.stop_here()


@contextmanager
def tf_config(text: str) -> Iterator[None]:
    """Sets ``TF_CONFIG`` to the identity of this process inside the context, for code that shards its input by it."""
    environment.put("TF_CONFIG", text)
    try:
        yield
    finally:
        environment.remove("TF_CONFIG")
