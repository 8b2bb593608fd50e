"""How the processes of a run save and restore together: which of them write and commit, and how they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from monolith.checkpoint.cut import take_cut
from monolith.checkpoint.restore.adapting import ALL_PARTS
from monolith.checkpoint.snapshots import newest_of_ranks
from monolith.tables.snapshot import end_of_save

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from monolith.checkpoint.catalog import Catalog, SavedCheckpoint
    from monolith.checkpoint.cut import Staging, StateCut
    from monolith.checkpoint.restore.adapting import Parts
    from monolith.checkpoint.restore.restoring import LoadedCheckpoint, Prepared
    from monolith.checkpoint.train_state import TrainState

P = TypeVar("P", "Prepared", "LoadedCheckpoint")


class PendingSave:
    """A save that runs in a thread named ``monolith-checkpoint``. Thread-safe."""

    def __init__(self, future: Future[SavedCheckpoint]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether the save has completed or failed."""
        return self.is_written

    @property
    def is_written(self) -> bool:
        """Whether this process has written everything."""
        return self._future.done()

    def wait(self, timeout_seconds: float | None = None) -> SavedCheckpoint:
        """Waits for the commit.

        Raises:
            DeadlineExceededError: the save is still running; wait again.
            OpError: the save failed; see `Saver.save`.
        """
        return end_of_save(self._future, timeout_seconds)


class SaveProtocol:
    """The protocol of a process that saves alone, and the base of those of several processes.

    A `Saver` calls it. With several processes all call their savers at the same step, so the protocol of each makes the
    same collective calls in the same order. An object serves one saver.
    """

    is_collective = False
    """Whether all processes of the run call their savers together."""

    def run_on_first(self, what: str, work: Callable[[], Any]) -> Any:  # noqa: ARG002 - what: for processes that agree
        """Returns what `work` returns on the process that decides for all; its error is raised on all.

        Args:
            what: Description of the work, for error messages.
            work: Returns a JSON value.
        """
        return work()

    def run_on_writers(self, what: str, work: Callable[[], None]) -> None:  # noqa: ARG002
        """Runs `work` on each process that has a directory; an error of any is raised on all."""
        work()

    def subfolder(self, name: str) -> SaveProtocol:  # noqa: ARG002 - for directories of several processes
        """Returns the protocol of a saver for the folder of this name inside the directory."""
        return SaveProtocol()

    # Saving

    def generation_floor(self, catalog: Catalog) -> int:  # noqa: ARG002
        """Returns a generation above which each process begins its own, in addition to those of its directory."""
        return 0

    def take_cut(self, state: TrainState, *, staging: Staging | None, dense_only: bool) -> StateCut:
        """Returns the cut that this process writes. Raises like `monolith.checkpoint.cut.take_cut`."""
        return take_cut(state, staging=staging, dense_only=dense_only)

    def write(self, work: Callable[[], SavedCheckpoint], *, in_background: bool) -> SavedCheckpoint:  # noqa: ARG002
        """Calls `work`, which writes and commits, on each process that does so; fails on all if it fails on any."""
        return work()

    def agree(self) -> None:
        """Waits until all writers have come as far; raises on all if one has failed. Before and after the commit."""

    def pending(self, future: Future[SavedCheckpoint]) -> PendingSave:
        """Returns the handle of a save that begins in the background."""
        return PendingSave(future)

    # Restoring

    def candidates(self, catalog: Catalog) -> list[str]:
        """Returns the checkpoints to try, the best first."""
        return newest_of_ranks(catalog)

    def own_path(self, path: str) -> str:
        """Returns the path of this process's part of a checkpoint, which was named by any process."""
        return path

    def source_of(self, model_dir: str, basename: str) -> str:  # noqa: ARG002
        """Returns the directory of this process in another model directory."""
        return model_dir

    def parts(self, state: TrainState) -> Parts:  # noqa: ARG002
        """Returns the parts of the state that this process restores."""
        return ALL_PARTS

    def prepare(self, prepare: Callable[[], P], *, check: Callable[[], None]) -> P:  # noqa: ARG002
        """Returns the checkpoint that `prepare` has read and checked; raises on all if that fails on any process.

        Args:
            prepare: Reads and checks everything, and changes nothing.
            check: Reads and checks what this process can read without the others.
        """
        return prepare()

    def restore(self, work: Callable[[], SavedCheckpoint], state: TrainState) -> SavedCheckpoint:  # noqa: ARG002
        """Calls `work`, which restores a checkpoint into `state`; fails on all if it fails on any process."""
        return work()
