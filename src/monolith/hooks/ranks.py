"""The ranks of a synchronous run start from the same weights, wait for each other's saves, and end together.

Their data ends at different batches, and a rank that stopped on its own would block the others in their next collective
call. So a flag marks the last batch (`flag_last`), the ranks exchange their flags after every step (`EofHook`), and all
stop with the first. `monolith.train.EofAwareTask` puts both around a task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from monolith import collective
from monolith.collective import calls
from monolith.data import Dataset
from monolith.errors import OpError
from monolith.hook import Hook
from monolith.hooks.listeners import SaverListener
from monolith.nn import without_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from monolith.hook import HookedSession, StepContext


class BroadcastGlobalVariablesHook(Hook):
    """Broadcasts the variables of one rank when a session is created, and again when it was rebuilt.

    Args:
        variables: Returns the mapping of names to tensors that are overwritten in place, such as ``model.state_dict``;
            called after the session was created, so that restored values are sent.
        root_rank: Rank whose values are sent.
    """

    def __init__(self, variables: Callable[[], Mapping[str, Tensor]], root_rank: int = 0) -> None:
        if not callable(variables):
            raise TypeError(
                f"BroadcastGlobalVariablesHook: variables must be a function such as model.state_dict, "
                f"got {type(variables).__name__}"
            )
        self._variables = variables
        self._root_rank = root_rank

    def after_create_session(self, session: HookedSession) -> None:  # noqa: ARG002 - the variables come from elsewhere
        """Overwrites the variables of all ranks with those of the root."""
        with without_rows():  # each rank has rows of its own
            variables = self._variables()
        calls.broadcast_parameters(variables, self._root_rank)


_log = logging.getLogger(__name__)


class SyncTrainingBarrierSaverListener(SaverListener):
    """No rank continues after a save before all have saved: the next export contains the files of all of them.

    A lost rank is logged, and does not fail the save of the others.
    """

    def after_save(self, session: HookedSession, global_step_value: int) -> None:  # noqa: ARG002 - a listener's signature
        """Waits for the other ranks."""
        try:
            collective.broadcast(torch.tensor([global_step_value], dtype=torch.int64))
        except (OpError, RuntimeError) as error:
            _log.error("step %d: not all ranks have saved: %s", global_step_value, error)


EOF_KEY: Final = "__EofAwareTask_eof"
FEATURES_KEY: Final = "1"
FLAG_KEY: Final = "2"


class EofHook(Hook):
    """Stops all ranks after the step in which one of them had its last batch. It precedes the other hooks of a task.

    Args:
        is_last: Whether the step that just ran had the last batch of this rank.
    """

    def __init__(self, is_last: Callable[[], bool]) -> None:
        self._is_last = is_last

    def after_run(self, context: StepContext) -> None:
        """Exchanges the flags of all ranks; a collective call."""
        flags = collective.allgather(torch.tensor([int(self._is_last())], dtype=torch.int64))
        if bool(flags.any()):
            context.stop_together()


def flag_last(source: Dataset[Any] | Iterable[Any]) -> Dataset[Any] | Iterator[Mapping[str, Any]]:
    """Returns the batches of a source, reading one ahead, each with a flag whether it is the last.

    The flag is one more key ``__EofAwareTask_eof`` of a mapping; features that are not a mapping become ``"1"`` of one,
    with the flag as ``"2"``.
    """
    if isinstance(source, Dataset):
        return source.mark_last().map(lambda pair: _flagged(*pair))
    return _read_ahead(source)


def split_flag(features: Any) -> tuple[Any, bool]:
    """Returns the features as before `flag_last`, and the flag.

    Raises:
        ValueError: they have no flag.
    """
    if isinstance(features, _FlaggedFeatures):
        return features.features, features.is_last
    if isinstance(features, Mapping) and EOF_KEY in features:
        return {name: value for name, value in features.items() if name != EOF_KEY}, bool(features[EOF_KEY])
    if isinstance(features, Mapping) and set(features) == {FEATURES_KEY, FLAG_KEY}:
        return features[FEATURES_KEY], bool(features[FLAG_KEY])
    raise ValueError(f"EofAwareTask: batch has no flag {EOF_KEY!r}; read batches from its own input_fn")


class _FlaggedFeatures(Mapping[str, Any]):
    """A mapping with the flag as an additional key; keeps the mapping itself, which may be more than its columns."""

    __slots__ = ("features", "is_last")

    def __init__(self, features: Mapping[str, Any], is_last: bool) -> None:
        self.features = features
        self.is_last = is_last

    def __getitem__(self, name: str) -> Any:
        return self.is_last if name == EOF_KEY else self.features[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.features
        yield EOF_KEY

    def __len__(self) -> int:
        return len(self.features) + 1


def _flagged(features: Any, is_last: bool) -> Mapping[str, Any]:
    if isinstance(features, Mapping):
        return _FlaggedFeatures(features, is_last)
    return {FEATURES_KEY: features, FLAG_KEY: is_last}


def _read_ahead(source: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    batches = iter(source)
    nothing = object()
    batch = next(batches, nothing)
    while batch is not nothing:
        following = next(batches, nothing)
        yield _flagged(batch, following is nothing)
        batch = following
