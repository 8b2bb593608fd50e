"""The best checkpoint of a model directory by a metric of its evaluation. Retention keeps it.

The file `best_checkpoint` names it. Only `keep_best` writes this file, and savers read it at every save, so that an
evaluation in another process may run concurrently with training.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from monolith.checkpoint.catalog import full_local_path
from monolith.checkpoint.state_files import checkpoint_exists, full_path, split_path
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.files import StoragePath, open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.files import Storage

BEST = "best"
"""The name by which the best checkpoint is restored."""
FILE = "best_checkpoint"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """A checkpoint, and by which value of which metric it is the best one."""

    path: str
    """Its prefix, with its folder."""
    metric: str
    mode: Literal["max", "min"]
    value: float


def best_checkpoint(model_dir: StoragePath) -> BestCheckpoint | None:
    """Returns the best one of a model directory; None if `keep_best` has named none.

    Raises:
        DataLossError: the file that names it is damaged.
    """
    return read_best(open_storage(model_dir))


def keep_best(
    model_dir: StoragePath,
    values: Mapping[str, float],
    *,
    checkpoint: str,
    metric: str = "auc",
    mode: Literal["max", "min"] = "max",
) -> BestCheckpoint | None:
    """Keeps a checkpoint if its value is better than that of the best one so far, which retention may then delete.

    Args:
        model_dir: Directory of the checkpoint.
        values: Results of its evaluation, such as `Trainer.evaluate` returns.
        checkpoint: Its prefix, such as ``model.ckpt-60``.
        metric: Which of the values decides. One that is NaN is never the best.
        mode: Whether larger or smaller values are better.

    Returns:
        The best one now; None if there is none.

    Raises:
        InvalidArgumentError: there is no such metric or mode.
        NotFoundError: there is no such checkpoint.
    """
    if mode not in {"max", "min"}:
        raise InvalidArgumentError(f"keep_best: mode must be 'max' or 'min', got {mode!r}")
    if metric not in values:
        raise InvalidArgumentError(f"keep_best: metric {metric!r} is not among the values, which are {sorted(values)}")
    folder = open_storage(model_dir)
    best = BestCheckpoint(path=split_path(checkpoint)[1], metric=metric, mode=mode, value=float(values[metric]))
    former = read_best(folder)
    if not _is_better(best, former):
        return former
    _write(folder, best)
    full = full_path(full_local_path(folder.path), best.path)
    if not checkpoint_exists(full):  # checked after writing: a concurrent saver may just have deleted it
        if former is None:
            folder.remove(FILE)
        else:
            _write(folder, former)
        raise NotFoundError(f"keep_best: there is no checkpoint '{full}'; evaluate one that was saved and is kept")
    return replace(best, path=full)


def read_best(folder: Storage) -> BestCheckpoint | None:
    """Reads the best checkpoint of a folder, like `best_checkpoint`."""
    if not folder.exists(FILE):
        return None
    try:
        best = BestCheckpoint(**json.loads(folder.read(FILE)))
        return replace(best, path=full_path(full_local_path(folder.path), best.path))
    except (ValueError, TypeError, AttributeError) as error:
        raise DataLossError(
            f"'{folder.place(FILE)}' does not name a checkpoint: {error!r}; remove the file to start from scratch"
        ) from error


def _is_better(candidate: BestCheckpoint, former: BestCheckpoint | None) -> bool:
    if math.isnan(candidate.value):
        _log.warning("checkpoint '%s' is not kept as the best one: its %s is NaN", candidate.path, candidate.metric)
        return False
    if former is None or (former.metric, former.mode) != (candidate.metric, candidate.mode):
        return True
    better = candidate.value > former.value if candidate.mode == "max" else candidate.value < former.value
    return better or not checkpoint_exists(former.path)


def _write(folder: Storage, best: BestCheckpoint) -> None:
    folder.replace(FILE, json.dumps(asdict(replace(best, path=split_path(best.path)[1]))).encode())
