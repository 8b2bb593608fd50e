"""Follows a log to its end without training code, and saves what that comes to as a base."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.deltalog.follow.log_tables import stores_of_log
from monolith.errors import FailedPreconditionError
from monolith.files import named_errors, remove_folder
from monolith.online import Follower
from monolith.online.joiner.locks import PartitionLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monolith.deltalog import Base, DeltaLog
    from monolith.observe.progress import Progress


_PREFIX = "compact-"
"""Of the names of bases that are made here."""
_LOCK = "compact.lock"


def compact(log: DeltaLog, *, keep_bases: int, progress: Progress) -> tuple[Base, Mapping[str, int]]:
    """Compacts a log. Returns the new base, and the number of the first remaining increment of each part.

    Leftovers of a killed compaction are removed first, if bases are in a folder of a file system; in an object store
    they cannot be distinguished from a compaction in progress.

    Raises:
        FailedPreconditionError: the log has no rows yet, or another compaction of it is in progress.
    """
    if keep_bases < 1:
        raise ValueError(f"--keep_bases must be >= 1, got {keep_bases}")
    stores = stores_of_log(log)
    if not stores:
        raise FailedPreconditionError(f"delta log '{log.place}': it has no rows yet, so there is nothing to save")
    with _alone(log), Follower(stores, log, on_increment=lambda found: progress.update(1, step=found.step)) as follower:
        for name in _remove_unfinished(log):
            progress.write(f"removing {name}, which was never finished")
        follower.catch_up()
        lag = follower.lag
        if lag.increments:
            progress.write(f"{lag.increments} unfinished increments ({lag.bytes} bytes) are not in the base")
        progress.write("saving a base")
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        base = follower.save_base(f"{_PREFIX}{moment}-{secrets.token_hex(2)}", keep_bases=keep_bases)
    firsts = {part: extent.first for part in log.parts() if (extent := log.extent(part)) is not None}
    return base, firsts


@contextmanager
def _alone(log: DeltaLog) -> Iterator[None]:
    """Excludes other compactions of the log by processes that share its folder."""
    folder = _local_folder(log)
    if folder is None:
        yield
        return
    lock = PartitionLock(str(folder / _LOCK))
    if not lock.acquire():
        raise FailedPreconditionError(
            f"delta log '{log.place}': another compaction is in progress, which holds '{lock.path}'; wait for its end"
        )
    try:
        yield
    finally:
        lock.release()


def _remove_unfinished(log: DeltaLog) -> list[str]:
    """Removes folders of bases that the log does not name; their names."""
    folder = _local_folder(log)
    named = {base.name for base in log.bases()}
    left = [] if folder is None else [each for each in sorted(folder.glob(f"{_PREFIX}*/")) if each.name not in named]
    for each in left:
        with named_errors(str(each), "removed"):
            remove_folder(str(each))
    return [each.name for each in left]


def _local_folder(log: DeltaLog) -> Path | None:
    """Returns where bases go; None: into an object store, or nowhere."""
    folder = log.base_folder
    return None if folder is None or "://" in folder else Path(folder)
