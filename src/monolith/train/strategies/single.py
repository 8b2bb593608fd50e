"""`SingleProcess`: this process trains alone; servers may store its dense weights."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

from monolith.ps.dense import DenseClient
from monolith.train._dense_step import DenseStep, ServerDense, require_servers
from monolith.train.input.jobs import LocalJob
from monolith.train.saving.job_restoring import JOB
from monolith.train.saving.restoring import restore_to_train
from monolith.train.strategies.strategy import Strategy, refuse_mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.checkpoint import Saver, TrainState
    from monolith.clock import Clock
    from monolith.ps.dense import DenseServers
    from monolith.train._dense_step import DenseConfig
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.session import Session
    from monolith.train.strategies.strategy import EndedBy
    from monolith.train.task import Mode

_log = logging.getLogger(__name__)


class AppliedBatches:
    """Numbers of the last batches in the state of a session. It does not keep the state alive."""

    def __init__(self) -> None:
        self._state: Callable[[], TrainState | None] = lambda: None

    def attach(self, state: TrainState) -> None:
        """Takes the state of a session."""
        self._state = weakref.ref(state)

    def __call__(self) -> dict[int, int]:
        """Returns worker -> number of its last batch."""
        state = self._state()
        return {} if state is None else {worker: stamp.seq for worker, stamp in state.applied.items()}


class SingleProcess(Strategy):
    """A process that trains alone. With the state of a run of several processes it finishes the input of all of them.

    Args:
        dense_servers: Parameter servers that store and update the dense weights in training; None: this process.
    """

    def __init__(self, dense_servers: DenseServers | None = None) -> None:
        super().__init__()
        self._dense_servers = dense_servers
        self._applied = AppliedBatches()
        self._inputs = LocalJob(applied=self._applied)

    def require_session(self, mode: Mode, dense: DenseConfig) -> None:
        """Refuses servers in a session that trains nothing, and settings of servers without them."""
        if self._dense_servers is not None:
            refuse_mode(mode, "servers keep dense weights")
        require_servers(dense, self._dense_servers)

    def join(self, config: TrainerConfig) -> TrainerConfig:
        """Begins a run."""
        self._applied = AppliedBatches()
        self._inputs = LocalJob(num_workers=config.num_workers, applied=self._applied)
        return super().join(config)

    def open_dense(
        self, state: TrainState, settings: DenseConfig, *, on_close: Callable[[Callable[[], None]], object]
    ) -> DenseStep:
        """Returns the update of the dense weights: by their optimizers here, or on servers."""
        if self._dense_servers is None:
            return DenseStep(list(state.optimizers.values()))
        return open_server_dense(state, self._dense_servers, settings, on_close=on_close)

    def attach(self, state: TrainState) -> None:
        """Takes the state, whose last batches show which inputs are finished."""
        self._applied.attach(state)

    def restore(self, state: TrainState, saver: Saver | None, *, clock: Clock) -> None:
        """Restores the newest checkpoint, with the inputs of the run that saved it."""
        state.extra[JOB] = self._inputs
        if saver is None or not restore_to_train(self.config, saver, state, clock=clock):
            self._inputs.reset()
        if not self.config.input.dynamic_sharding and self._inputs.num_shares == self.config.num_workers:
            del state.extra[JOB]  # it has nothing to keep

    @property
    def inputs(self) -> LocalJob:
        """Returns the inputs of this process."""
        return self._inputs

    def has_more_input(self, session: Session, ended_by: EndedBy, *, while_waiting: Callable[[], None]) -> bool:
        """Continues with the inputs of workers of an earlier start that had more processes."""
        if ended_by == "stop":
            return False
        session.settle()
        self._inputs.finish(session.worker_index)
        number = self._inputs.adopt_worker()
        if number is not None:
            _log.info("session: continues with the input of worker %d, which is no longer in the job", number)
            session.adopt_worker(number)
        return number is not None


def open_server_dense(
    state: TrainState, servers: DenseServers, settings: DenseConfig, *, on_close: Callable[[Callable[[], None]], object]
) -> DenseStep:
    """Returns the update of dense weights that servers store; of this process if there are none."""
    optimizers = list(state.optimizers.values())
    if state.model is None or not optimizers:
        return DenseStep(optimizers)
    client = DenseClient(state.model, state.optimizers, servers, partition=settings.partition)
    state.dense = client

    def close() -> None:
        state.dense = None
        client.close()

    on_close(close)
    return ServerDense(client, optimizers, settings)
