"""A hook that makes all ranks start from the same weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.collective import calls
from monolith.hook import Hook
from monolith.nn import without_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from monolith.hook import HookedSession


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
