"""Who holds which buckets: several native groups can share the 1,024 buckets of one store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from monolith import _core


class BucketOwner(NamedTuple):
    """A native group and the consecutive buckets whose rows it has; its other buckets stay empty."""

    group: _core.Group
    buckets: range
