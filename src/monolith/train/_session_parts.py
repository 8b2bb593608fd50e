"""Parts of a session: the model of its task with its optimizers, and the update of its dense weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps.dense.client import DenseClient
from monolith.train._dense_averaging import DenseAveraged
from monolith.train._dense_step import DenseConfig, DenseStep, LocalDense, ServerDense

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.checkpoint import TrainState
    from monolith.ps.dense.wire import DenseServers
    from monolith.tables.store import Store
    from monolith.tables.table_config import TableConfig
    from monolith.train.device_placement import DevicePlacement
    from monolith.train.rank_part import RankPart
    from monolith.train.task import Task

__all__ = ["build_parts", "open_dense"]


def build_parts(
    task: Task,
    stores: Callable[[Mapping[str, TableConfig]], Store] | None,
    *,
    placement: DevicePlacement | None = None,
    deterministic: bool,
) -> dict[str, Any]:
    """Returns model, optimizers and schedules of a task, as arguments of a `TrainState`.

    Args:
        task: The task to build.
        stores: Makes the stores of its tables; None: those of the runner.
        placement: The device of the dense part; None: that of the task.
        deterministic: Start with a fixed seed.
    """
    if deterministic:
        torch.manual_seed(0)
    with use_table_defaults(TableDefaults(store=stores)):
        model = task.make_model()
    if placement is not None:
        placement.place(model)
    made = task.optimizers(model)
    optimizers: dict[str, torch.optim.Optimizer] = {}
    if isinstance(made, torch.optim.Optimizer):
        optimizers = {"dense": made}
    elif made is not None:
        optimizers = dict(made)
    return {"model": model, "optimizers": optimizers, "schedules": task.schedules(optimizers)}


def open_dense(
    state: TrainState,
    servers: DenseServers | None,
    ranks: RankPart | None,
    settings: DenseConfig,
    *,
    on_close: Callable[[Callable[[], None]], object],
) -> DenseStep:
    """Returns the update of the dense weights of a state: local, averaged over ranks, or on servers.

    Args:
        state: The state to update.
        servers: Servers that store them; None: this process.
        ranks: Part in a synchronous run; None: not synchronous.
        settings: Which operations overlap with a step, if servers store the weights.
        on_close: Registers a function to call at the end.
    """
    optimizers = list(state.optimizers.values())
    if ranks is not None:
        return DenseAveraged(optimizers, ranks)
    if servers is None or state.model is None or not optimizers:
        return LocalDense(optimizers)
    client = DenseClient(state.model, state.optimizers, servers, partition=settings.partition)
    state.dense = client

    def close() -> None:
        state.dense = None
        client.close()

    on_close(close)
    return ServerDense(client, optimizers, settings)
