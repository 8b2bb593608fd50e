"""Cases of ranks that publish what they train; `test_rank_publishing` asks for what is in the log then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith import collective
from train.rank_checkpoint_cases import counted

if TYPE_CHECKING:
    from pathlib import Path


def case_publish(folder: Path) -> Any:
    """Two ranks begin, and three go on to the end of the input."""
    return counted(
        folder.parents[1],
        max_steps=3 if collective.size() == 2 else None,
        enable_realtime_training=True,
        delta_log_interval_secs=0.1,
    )
