"""Config of the ranks of a synchronous run."""

from __future__ import annotations

from monolith.config import Config, config, require_positive
from monolith.files import is_name, join

__all__ = ["SyncConfig"]


@config
class SyncConfig(Config):
    """Every rank has a batch of its own for each step; rows are shared out among the ranks, dense weights are copies.

    All of it is the same on every rank.
    """

    combine: str = "sum"
    """How the gradients of a row of several ranks are combined: ``sum``, or ``mean`` over the ranks that had a batch,
    as dense gradients always are."""
    own_folders: str | None = None
    """The folder of the model directory in which each rank saves what it has into a directory of its own,
    ``index-<rank>``; empty: the model directory itself. None: all ranks save into one directory."""
    alltoall_metrics: bool = False
    """Whether rank 0 shows how ids and rows are spread over the ranks, in its log and in event files, as often as
    other records; a run of one exchanges nothing."""
    alltoall_metrics_slot: str | None = None
    """A table whose ids are counted there as ``<slot>_size``."""
    timeout_seconds: float = 1800.0
    """Timeout of calls between ranks; a rank that waits longer exits. In a program that has called
    `monolith.collective.init` itself, the timeout given there holds."""

    def __post_init__(self) -> None:
        require_positive(self, "timeout_seconds")
        if self.combine not in {"sum", "mean"}:
            raise ValueError(f"SyncConfig: combine must be 'sum' or 'mean', got {self.combine!r}")
        if self.alltoall_metrics_slot is not None and not self.alltoall_metrics:
            raise ValueError(
                f"SyncConfig: alltoall_metrics_slot={self.alltoall_metrics_slot!r} counts nothing without"
                " alltoall_metrics=True; set it, too"
            )
        if self.own_folders and not is_name(self.own_folders):
            raise ValueError(
                f"SyncConfig: own_folders must be the name of a folder, or empty, got {self.own_folders!r}"
            )

    def checkpoint_dir(self, model_dir: str) -> str:
        """Returns the directory of the checkpoints of the run, or of the directories of its ranks."""
        return join(model_dir, self.own_folders) if self.own_folders else model_dir
