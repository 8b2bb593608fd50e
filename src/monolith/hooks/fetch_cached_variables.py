"""Refreshes cached variables alongside each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.hook import Hook
from monolith.ps.client.cached_variables import (
    CachedVariableMeta,
    assign_all_cached_variables,
    current_cached_variables,
    fetch_all_cached_variables,
    use_cached_variables,
)

if TYPE_CHECKING:
    from monolith.hook import Call, HookedSession, StepContext

__all__ = ["FetchAllCachedVariablesHook"]


class FetchAllCachedVariablesHook(Hook):
    """Fetches cached variables alongside each step, and assigns them after it; the first step waits for both.

    A step computes with values that are at most one step old, and waits for no server.

    Args:
        meta: The variables; None: those of `fetch_all_cached_variables` where the hook is created.
    """

    def __init__(self, meta: CachedVariableMeta | None = None) -> None:
        self._meta = current_cached_variables() if meta is None else meta
        self._first_run = True

    def after_create_session(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Makes the next step the first one."""
        self._first_run = True

    def before_run(self, context: StepContext) -> Call:  # noqa: ARG002 - a hook's signature
        """Returns the fetch that runs alongside the step."""
        if self._first_run:
            self._first_run = False
            self._fetch()
            self._assign()
        return self._fetch

    def after_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Assigns the fetched values, which the next step uses."""
        self._assign()

    def _fetch(self) -> None:
        with use_cached_variables(self._meta):
            fetch_all_cached_variables()

    def _assign(self) -> None:
        with use_cached_variables(self._meta):
            assign_all_cached_variables()
