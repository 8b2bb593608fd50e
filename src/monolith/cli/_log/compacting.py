"""Follows a log to its end without training code, and saves what that comes to as a base."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError
from monolith.online import Follower
from monolith.online.log_tables import stores_of_log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.deltalog import Base, DeltaLog
    from monolith.observe.progress import Progress


def compact(log: DeltaLog, *, keep_bases: int, progress: Progress) -> tuple[Base, Mapping[str, int]]:
    """The new base, and the number of the first increment of each part that is still there.

    Raises:
        FailedPreconditionError: the log has no rows yet.
    """
    if keep_bases < 1:
        raise ValueError(f"--keep_bases must be >= 1, got {keep_bases}")
    stores = stores_of_log(log)
    if not stores:
        raise FailedPreconditionError(f"delta log '{log.place}': it has no rows yet, so there is nothing to save")
    with Follower(stores, log, on_increment=lambda found: progress.update(1, step=found.step)) as follower:
        follower.catch_up()
        progress.write("saving a base")
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        base = follower.save_base(f"compact-{moment}-{secrets.token_hex(2)}", keep_bases=keep_bases)
    firsts = {part: extent.first for part in log.parts() if (extent := log.extent(part)) is not None}
    return base, firsts
