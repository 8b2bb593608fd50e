"""Saves and restores ranks whose rows are on parameter servers: rank 0 does for the rows what the chief of a job does.

There is no barrier: ranks make their steps together. At the step of a save every rank waits until the servers have its
updates, then rank 0 freezes the rows of the servers, and no rank continues before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.checkpoint import take_cut
from monolith.checkpoint.restore import ALL_PARTS, Parts
from monolith.train.saving.rank_saver import RankSaver

if TYPE_CHECKING:
    from monolith.checkpoint import RestoreConfig, SavedCheckpoint, Staging, StateCut, TrainState

__all__ = ["ServerRankSaver"]


class ServerRankSaver(RankSaver):
    """The checkpoints of such a run, in the form of every other one. Used as `RankSaver` is."""

    def _own_cut(self, state: TrainState, staging: Staging | None) -> StateCut:
        self._words.run_on_all("bringing all updates to the servers", state.settle)
        taken: list[StateCut] = []
        own_cut = super()._own_cut

        def take() -> None:
            is_first = self._part.is_first
            taken.append(own_cut(state, staging) if is_first else take_cut(state, staging=None, dense_only=True))

        try:
            self._words.run_on_all("freezing the rows of the servers", take)
        except BaseException:
            for cut in taken:
                cut.release()
            raise
        return taken[0]

    def _restore(self, path: str, state: TrainState, options: RestoreConfig | None) -> SavedCheckpoint:
        """Restores everything on rank 0; if the servers fail to load their rows, no rank continues."""
        restored: list[SavedCheckpoint] = []
        restore = super()._restore
        self._words.run_on_all("restoring", lambda: restored.append(restore(path, state, options)))
        return restored[0]

    def _parts(self, state: TrainState) -> Parts:
        return ALL_PARTS if self._part.is_first else Parts(keeps=lambda name: name in state.stores)
