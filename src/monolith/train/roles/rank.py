"""A worker of a job with synchronous ranks: rows are on servers, each rank has all dense weights.

Ranks have no coordinator: the launcher assigns their ranks, and their steps keep them in sync. When a rank or a server
is lost, all ranks exit. Restarted by their launcher, they wait until all servers are up, and roll back to the last
checkpoint, including the rows of the servers.
"""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

from monolith.cluster import BarrierOp
from monolith.errors import AbortedError, DeadlineExceededError, FailedPreconditionError, UnavailableError
from monolith.hooks.ps_health import PsHealthHook
from monolith.stop_request import StopRequest
from monolith.train._job_signals import on_signals
from monolith.train.debugging_info import DebuggingInfoHook
from monolith.train.roles.worker import WorkerRole, tf_config
from monolith.train.trainer import Trainer

if TYPE_CHECKING:
    from monolith.cluster.training_cluster import TrainingCluster
    from monolith.hook import Hook
    from monolith.ps.client.cluster import PsCluster

__all__ = ["RankRole"]

_log = logging.getLogger(__name__)

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
                row_servers=servers,
            )
            stack.enter_context(
                on_signals(lambda number: self._stop(number, trainer, stop), signals=(signal.SIGINT, signal.SIGTERM))
            )
            trainer.train(max_steps=self._wanted.max_steps)
            trainer.forget_state()
            if self._signal is not None and self._wanted.on_stop is not None:
                self._wanted.on_stop()
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
