"""Parts of a session: its settings, its state, and the model of its task with its optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint import TrainState
from monolith.config import Config, config
from monolith.errors import InvalidArgumentError
from monolith.nn import TableDefaults, use_table_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.hook import Hook
    from monolith.nn import Embeddings
    from monolith.ps.dense import DenseServers
    from monolith.tables import Store, TableConfig
    from monolith.train._dense_step import DenseConfig
    from monolith.train._table_pipeline import PipelineConfig
    from monolith.train.device_placement import DevicePlacement
    from monolith.train.history import History
    from monolith.train.session import Session
    from monolith.train.strategies.strategy import Strategy
    from monolith.train.task import Mode, Task


class SessionState(TrainState):
    """The state of a session: a cut of it first waits for operations in flight."""

    session: Session | None = None
    """The one that it is open in."""
    history: History | None = None
    """Measurements of the last call of `Trainer.train`; None if the session was run without a trainer."""

    def settle(self) -> None:
        """Applies postponed updates, and discards rows that were read ahead."""
        if self.session is not None:
            self.session.settle()


@config
class SessionConfig(Config):
    """What configures a `Session`; it takes the fields by name."""

    mode: Mode = "train"
    """``train`` changes weights and rows; ``eval`` and ``predict`` change nothing."""
    hooks: Sequence[Hook] = ()
    """Hooks, called in this order."""
    model_dir: str | None = None
    """Directory in which hooks read and write files."""
    restore: Callable[[TrainState], Any] | None = None
    """Called with the new state before hooks see the session, such as ``Saver.restore``."""
    state: SessionState | None = None
    """A state to continue with, instead of one that is built from the task."""
    pipeline: PipelineConfig | None = None
    """How far tables and model may be apart. Only for training."""
    worker_index: int = 0
    """Which worker this is."""
    deterministic: bool = False
    """Take time only from the data and start with a fixed seed, so that runs are reproducible."""
    dense: DenseConfig | None = None
    """Which operations overlap with a step if servers store the dense weights."""
    placement: DevicePlacement | None = None
    """The device of the dense part, and where the tables are; None: the modules stay where the task puts them, tables
    are in host memory, and batches are not moved."""
    strategy: Strategy | None = None
    """How it trains with other processes; None: alone, as a `SingleProcess`."""
    servers: DenseServers | None = None
    """Deprecated: give ``strategy=SingleProcess(servers)``."""


def build_parts(
    task: Task,
    stores: Callable[[Mapping[str, TableConfig]], Store] | None,
    *,
    placement: DevicePlacement | None = None,
    deterministic: bool,
) -> dict[str, Any]:
    """Returns model, optimizers and schedules of a task, as arguments of a `TrainState`."""
    if deterministic:
        torch.manual_seed(0)
    with use_table_defaults(TableDefaults(store=stores)):
        model = task.make_model()
    if placement is not None:
        placement.place(model)
    made_optimizers = task.optimizers(model)
    optimizers: dict[str, torch.optim.Optimizer] = {}
    if isinstance(made_optimizers, torch.optim.Optimizer):
        optimizers = {"dense": made_optimizers}
    elif made_optimizers is not None:
        optimizers = dict(made_optimizers)
    return {"model": model, "optimizers": optimizers, "schedules": task.schedules(optimizers)}


def store_factory_of(
    strategy: Strategy, placement: DevicePlacement | None
) -> Callable[[Mapping[str, TableConfig]], Store] | None:
    """Returns what makes the stores of a session: of its strategy, else of the device that has the tables.

    Returns:
        The function; None: the default of the runner, in this process.

    Raises:
        InvalidArgumentError: both have one.
    """
    of_strategy = strategy.store_factory()
    of_device = None if placement is None else placement.store_factory()
    if placement is not None and of_strategy is not None and of_device is not None:
        raise InvalidArgumentError(
            f"session: placement keeps the tables on {placement.device}, and strategy {type(strategy).__name__} makes"
            " stores of its own; expected one of the two: leave DeviceConfig.tables out, or change the strategy"
        )
    return of_device if of_strategy is None else of_strategy


def embeddings_of(state: TrainState) -> list[Embeddings]:
    """Returns the `Embeddings` of a model."""
    modules = list(state.embeddings.values())
    if len({id(module.store) for module in modules}) != len(modules):
        raise InvalidArgumentError(
            "session: two Embeddings of the model share one store, so that a batch would be applied by the first only;"
            " put all slots of a store into one Embeddings"
        )
    return modules
