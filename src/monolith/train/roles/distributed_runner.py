"""`distributed_train`: one process of a job of many, whichever role it has."""

from __future__ import annotations

import dataclasses
import logging
import signal
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal, cast

from monolith.clock import SystemClock
from monolith.cluster import BarrierOp, DiscoveryConfig, own_place
from monolith.cluster.discovery import ScheduledDiscovery
from monolith.cluster.runtimes import maybe_finish_application, maybe_kill_application
from monolith.errors import (
    AbortedError,
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
)
from monolith.hooks import PsHealthHook, PushThread
from monolith.observe import HeartBeat
from monolith.stop_request import StopRequest
from monolith.train._run_hooks import require_publishing
from monolith.train.compat.conversions import mode_of
from monolith.train.compat.derive_config import trainer_config_of
from monolith.train.compat.refusal import require_partial_sync
from monolith.train.config.job_config import JobProgramConfig
from monolith.train.config.trainer_config import RESTART_OF_A_JOB, require_training
from monolith.train.device_placement import TABLES_ON_SERVERS
from monolith.train.roles.debugging_info import DebuggingInfoHook
from monolith.train.roles.local_runner import use_threads
from monolith.train.roles.place import RolePlace, ServerPlaces
from monolith.train.roles.preparation import on_signals, prepare_task, take_rank
from monolith.train.roles.server import run_server
from monolith.train.roles.worker import WorkerRole, tf_config
from monolith.train.strategies.ranks import Ranks
from monolith.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.cluster import TrainingCluster
    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.hook import Hook
    from monolith.hooks import SyncBackend
    from monolith.ps.client import PsCluster
    from monolith.train.compat.options import DistributedCpuTrainingConfig
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.parameters.params import Params

# Ranks have no coordinator: the launcher assigns their ranks, and their steps keep them in sync. When a rank or a
# server is lost, all ranks exit. Restarted by their launcher, they wait until all servers are up, and roll back to
# the last checkpoint, including the rows of the servers.

_LOST = (AbortedError, DeadlineExceededError, FailedPreconditionError, UnavailableError)
"""What a rank raises when another rank or a server is lost, or restarted without its state."""


class RankRole(WorkerRole):
    """One rank, from its start until all ranks have ended. Constructed like a `WorkerRole`."""

    _lost_seconds = 5.0  # longer than in other jobs, whose workers resume in place: here all ranks restart

    _signal: int | None = None

    @property
    def ends_servers(self) -> bool:
        """Returns whether the job is over: after a SIGTERM, as sent by torchrun, this rank may be restarted."""
        return self._signal != signal.SIGTERM

    def _attempts(self, address: str) -> Trainer:
        """Makes one attempt: after any loss the launcher restarts all ranks."""
        cluster = self._assemble(address)
        self._metrics.containers_ready()
        try:
            return self._attempt(cluster, address)
        except _LOST as error:
            _log.error(
                "rank %d ends, and all others with it: %s; started again (torchrun --max-restarts), all ranks wait for"
                " the servers, and go back to the last checkpoint together with them",
                self._place.index,
                error,
            )
            raise

    @property
    def _node_seconds(self) -> float:
        return self._place.settings.session_creation_timeout_seconds

    def _attempt(self, cluster: TrainingCluster, address: str) -> Trainer:
        self._require_nodes(cluster)
        with ExitStack() as stack:
            stop = StopRequest()
            servers, _ = self._open_servers(stack, cluster, stop)
            stack.enter_context(tf_config(cluster.tf_config()))
            trainer = Trainer(
                self._params.instantiate(),
                self._config,
                hooks=[*self._first_hooks(servers, address), *self._hooks],
                clock=self._clock,
                strategy=Ranks(servers),
            )
            stack.enter_context(
                on_signals(lambda number: self._stop(number, trainer, stop), signals=(signal.SIGINT, signal.SIGTERM))
            )
            trainer.train(max_steps=self._program.max_steps)
            trainer.release_state()
            if self._signal is not None and self._program.on_stop is not None:
                self._program.on_stop()
            return trainer

    def _first_hooks(self, servers: PsCluster, address: str) -> list[Hook]:
        """Returns the hooks of rank 0, which monitors the servers: while it waits, all ranks do."""
        if self._place.index:
            return []
        info = DebuggingInfoHook(self._place.model_dir, address, servers, self._place.num_workers)
        return [PsHealthHook(servers, BarrierOp(1)), info]

    def _stop(self, number: int, trainer: Trainer, stop: StopRequest) -> None:
        _log.warning("rank %d: requests all ranks to stop; the next signal ends this process", self._place.index)
        self._signal = number
        trainer.request_stop()
        stop.set()


_log = logging.getLogger(__name__)


def distributed_train(
    config: DistributedCpuTrainingConfig,
    discovery: ServiceDiscovery,
    params: Params,
    sync_backend: SyncBackend | None = None,
    user_hooks: Sequence[Hook] = (),
    *,
    settings: JobProgramConfig | None = None,
) -> Trainer | None:
    """Runs one process of a job; all of them call it, with their own role and index.

    A server returns when the job is over, or on a request to stop. A worker returns when all is trained; the chief,
    worker 0, when all workers have, the last checkpoint holds what they pushed, and the servers were requested to stop.
    They may start in any order.

    With ``enable_sync_training`` and ``enable_partial_sync_training`` torchrun or mpirun starts the workers, which are
    the ranks of a synchronous run: they make their steps together and average dense gradients, while rows are on the
    servers, each rank reading and updating them by itself. A failure of any rank or server ends all ranks; after a
    restart they and the servers resume from the last checkpoint.

    Args:
        config: Options with ``server_type``, ``index``, ``num_ps``, ``num_workers`` and ``model_dir``.
        discovery: Where processes register and find each other; the caller closes it.
        params: Parameters of the task.
        sync_backend: Pushes what the job publishes to serving: server s pushes to the shards i with i % num_ps ==
            s, every ten seconds. None: nothing is pushed.
        user_hooks: Attached to the session of a worker.
        settings: Overrides for custom programs.

    Returns:
        The trainer of a worker, which evaluates and predicts from the last checkpoint; None for a server.

    Raises:
        ValueError: an option is missing, contradicts another one, or has no effect.
        OpError: the job could not continue.
    """
    settings = JobProgramConfig() if settings is None else settings
    require_training(mode_of(config.mode), "distributed_train")
    prepare_task(config, params)
    place, trainer_config = _place_and_config(config, discovery, params, settings)
    if trainer_config.restoring.restart_input:
        raise ValueError(f"distributed_train: {RESTART_OF_A_JOB}")
    if trainer_config.device.tables:
        raise ValueError(f"distributed_train: {TABLES_ON_SERVERS}")
    if sync_backend is not None:
        require_publishing(trainer_config, "distributed_train")
    use_threads(config)
    if place.role == "ps":
        with _pushing(sync_backend, place):
            run_server(place, on_stop=settings.on_stop)
        return None
    kind = RankRole if config.enable_partial_sync_training else WorkerRole
    role = kind(place, params, trainer_config, hooks=user_hooks, clock=SystemClock(), program=settings)
    if place.index:
        return role.run()
    return _as_first_rank(place, role, settings) if isinstance(role, RankRole) else _as_chief(place, role, settings)


@contextmanager
def _pushing(backend: SyncBackend | None, place: RolePlace) -> Iterator[None]:
    """Pushes in the background of a server; a standby does not push."""
    with ExitStack() as closing:
        if backend is not None and place.index < place.num_ps:
            for index in range(place.index, backend.num_shards, place.num_ps):
                thread = PushThread(backend, index)
                closing.callback(thread.close)
                thread.start()
        yield


def _place_and_config(
    config: DistributedCpuTrainingConfig, discovery: ServiceDiscovery, params: Params, settings: JobProgramConfig
) -> tuple[RolePlace, TrainerConfig]:
    role, index = own_place(DiscoveryConfig(server_type=config.server_type, index=config.index), discovery)
    if config.enable_sync_training or config.enable_partial_sync_training:
        index = _take_sync_place(config, role, index, is_scheduled=isinstance(discovery, ScheduledDiscovery))
    _require_job(config, role, index)
    if role == "worker" and index != config.index:
        config.index = index
    trainer_config = _worker_config(config, params) if role == "ps" else trainer_config_of(config, params)
    reporting = trainer_config.reporting
    together = 1 if config.enable_partial_sync_training else trainer_config.num_workers
    place = RolePlace(
        role=cast('Literal["ps", "worker"]', role),
        index=index,
        num_ps=config.num_ps,
        num_workers=config.num_workers,
        settings=trainer_config.job,
        discovery=discovery,
        model_dir=config.model_dir,
        publishes=trainer_config.publishing is not None,
    )
    # Steps are counted over all workers of the job.
    trainer_config = dataclasses.replace(
        trainer_config,
        model_name=trainer_config.model_name or str(params.name),
        deterministic=settings.deterministic,
        reporting=dataclasses.replace(
            reporting,
            log_every_steps=_times(reporting.log_every_steps, together),
            summary_every_steps=_times(reporting.summary_every_steps, together),
        ),
    )
    return place, trainer_config


def _take_sync_place(config: DistributedCpuTrainingConfig, role: str, index: int, *, is_scheduled: bool) -> int:
    """Refuses what a job cannot do in step; the index of this process, which of a worker is its rank."""
    if config.enable_full_sync_training:
        raise ValueError(
            "distributed_train: enable_sync_training alone is about ranks that share the rows, without servers; use"
            " distributed_sync_train, or set enable_partial_sync_training, too"
        )
    require_partial_sync(config)
    if role != "worker":
        return index
    take_rank(config, scheduled=index if is_scheduled else None)
    return config.index


def _worker_config(config: DistributedCpuTrainingConfig, params: Params) -> TrainerConfig:
    """Returns the config of a worker of the same job; servers need its job section."""
    values = {name: value for name, value, _ in config.describe() if config.is_set(name)}
    return trainer_config_of(type(config)(**{**values, "server_type": "worker", "index": 0}), params)


def _times(every_steps: int | None, num_workers: int) -> int | None:
    return None if every_steps is None else every_steps * num_workers


def _require_job(config: DistributedCpuTrainingConfig, role: str, index: int) -> None:
    if role not in {"ps", "worker"}:
        raise ValueError(f"distributed_train: server_type must be ps or worker, got {role!r}")
    if not config.model_dir:
        raise ValueError("distributed_train: model_dir must name the folder of checkpoints, got ''")
    if config.num_ps < 1:
        raise ValueError(f"distributed_train: num_ps must be >= 1: servers keep the rows of a job, got {config.num_ps}")
    if config.num_workers < 1:
        raise ValueError(f"distributed_train: num_workers must be >= 1, got {config.num_workers}")
    count = config.num_workers if role == "worker" else config.num_ps + config.num_extra_ps + config.num_redundant_ps
    if not 0 <= index < count:
        raise ValueError(f"distributed_train: index of a {role} must be from 0 to {count - 1}, got {index}")


def _as_chief(place: RolePlace, role: WorkerRole, settings: JobProgramConfig) -> Trainer:
    """Runs the chief, which ends the job however training ends."""
    try:
        with HeartBeat():
            trainer = role.run()
    except (AlreadyExistsError, AbortedError):
        raise  # another process is the chief, and the job continues
    except BaseException as error:
        _end_job(place, settings)
        maybe_kill_application(str(error))
        raise
    _end_job(place, settings)
    maybe_finish_application()
    return trainer


def _as_first_rank(place: RolePlace, role: RankRole, settings: JobProgramConfig) -> Trainer:
    """Runs rank 0, which stops the servers when all is trained; after a failure they keep running for a restart."""
    with HeartBeat():
        trainer = role.run()
    if role.ends_servers:
        _end_job(place, settings)
        maybe_finish_application()
    return trainer


def _end_job(place: RolePlace, settings: JobProgramConfig) -> None:
    try:
        if settings.shut_down_servers and place.settings.ends_servers:
            ServerPlaces(place).stop_all()
    except Exception:  # noqa: BLE001 - the scheduler must see how the job ended
        _log.exception("the servers could not be stopped")
