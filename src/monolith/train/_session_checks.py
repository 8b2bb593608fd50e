"""Checks of a session before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from monolith.checkpoint import TrainState
    from monolith.nn import Embeddings
    from monolith.ps.dense.wire import DenseServers
    from monolith.train.task import Mode

__all__ = ["embeddings_of", "require_training"]


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
    found = list(state.embeddings.values())
    if len({id(each.store) for each in found}) != len(found):
        raise InvalidArgumentError(
            "session: two Embeddings of the model share one store, so that a batch would be applied by the first only;"
            " put all slots of a store into one Embeddings"
        )
    return found
