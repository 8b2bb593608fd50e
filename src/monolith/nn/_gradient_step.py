"""One optimizer step of a module's rows, taken out of it: made in one thread, applied in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.nn._passes import BatchPass, Ledger
    from monolith.nn._progress import Progress
    from monolith.tables.store import Applied, Store, Update

__all__ = ["GradientStep"]


class GradientStep:
    """Gradients that `Embeddings.take_step` took, and how they are to be applied: by exactly one call of `apply`.

    Steps of one module are applied in the order in which they were taken, the next one is taken after that.
    """

    __slots__ = ("_ledger", "_passes", "_progress", "_rule", "_store")

    def __init__(
        self, store: Store, ledger: Ledger, progress: Progress, passes: Sequence[BatchPass], rule: Update
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._progress = progress
        self._passes = passes
        self._rule = rule
        ledger.take(passes)

    def apply(self) -> Applied:
        """One optimizer step for every id; any thread may call it.

        Raises:
            InvalidArgumentError: a gradient is not finite. No row changed; the gradients are back in the module.
        """
        updates = [(each.batch.plan, each.gradient) for each in self._passes if each.gradient is not None]
        try:
            applied = self._store.apply(updates, self._rule).result()
        except BaseException:
            self._ledger.give_back(self._passes)
            raise
        self._ledger.close_applied(self._passes)
        self._progress.count_update(self._rule, applied, newest_batch=self._passes[-1].stamp.seq)
        _require_new(applied, self._passes)
        return applied


def _require_new(applied: Applied, passes: Sequence[BatchPass]) -> None:
    """Refuses to go on with batch numbers that are not the store's: it would take every step for a repeated one."""
    if applied.duplicate and not all(each.batch.is_replayable for each in passes):
        raise FailedPreconditionError(
            f"step: the store had applied batch {passes[-1].stamp.seq} before and did nothing; its rows were restored"
            " without this module's state_dict, which says how far it was"
        )
