"""Parts of a session: the model of its task with its optimizers, and the update of its dense weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from monolith.errors import InvalidArgumentError
from monolith.nn import TableDefaults, use_table_defaults
from monolith.ps.dense import DenseClient
from monolith.train._dense_step import DenseConfig, DenseStep, LocalDense, ServerDense
from monolith.train.rank_part import RankPart, RankUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn import Parameter
    from torch.optim import Optimizer

    from monolith.checkpoint import TrainState
    from monolith.nn import Embeddings
    from monolith.ps.dense import DenseServers
    from monolith.tables import Store, TableConfig
    from monolith.train._dense_step import StepGradients
    from monolith.train.device_placement import DevicePlacement
    from monolith.train.task import Mode, Task


class DenseAveraged(LocalDense):
    """Dense weights that every rank updates by its own optimizers, with averaged gradients.

    A weight that the batches of some ranks did not use has the gradients of the others; one that no rank has used has
    none, so that optimizers skip it as they do in one process.

    Args:
        optimizers: Optimizers of the weights.
        part: The run.
    """

    def __init__(self, optimizers: Sequence[Optimizer], part: RankPart) -> None:
        super().__init__(optimizers)
        self._part = part

    @property
    def in_step(self) -> bool:
        """Returns True: all ranks make the same steps."""
        return True

    def combine(self, gradients: StepGradients) -> None:
        """Averages the gradients over all ranks; a step that any rank refuses is refused by all."""
        num_pushes = gradients.num_pushes if self._part.shares_rows else 0  # pushes to servers are not followed
        update = RankUpdate(gradients.reached, num_pushes, has_dense=bool(gradients.weights))
        self._part.update(update, gradients.weights, gradients.why_refused())

    def follow(self, weights: Sequence[Parameter]) -> RankUpdate | None:
        """Makes a step without a batch, with the mean gradient of the others; None if no rank has a batch."""
        return self._part.follow_step(weights)


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
    made_optimizers = task.optimizers(model)
    optimizers: dict[str, torch.optim.Optimizer] = {}
    if isinstance(made_optimizers, torch.optim.Optimizer):
        optimizers = {"dense": made_optimizers}
    elif made_optimizers is not None:
        optimizers = dict(made_optimizers)
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


def require_training(mode: Mode, servers: DenseServers | None) -> None:
    """Refuses servers of dense weights where nothing is trained.

    Raises:
        InvalidArgumentError: there are some.
    """
    if servers is not None and mode != "train":
        raise InvalidArgumentError(
            f"session: servers keep dense weights that are trained, and mode is {mode!r}; restore a checkpoint of them,"
            " which has the form of one process"
        )


def embeddings_of(state: TrainState) -> list[Embeddings]:
    """Returns the `Embeddings` of a model.

    Raises:
        InvalidArgumentError: two of them share one store.
    """
    modules = list(state.embeddings.values())
    if len({id(module.store) for module in modules}) != len(modules):
        raise InvalidArgumentError(
            "session: two Embeddings of the model share one store, so that a batch would be applied by the first only;"
            " put all slots of a store into one Embeddings"
        )
    return modules
