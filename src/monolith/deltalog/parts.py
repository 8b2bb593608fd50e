"""Names of the parts of a log: one per owner of rows, and one for the dense weights."""

from __future__ import annotations

import re

from monolith.errors import InvalidArgumentError
from monolith.files import is_name
from monolith.tables.history import ALL_BUCKETS, bucket_bounds

DENSE_PART = "dense"
"""The part that holds dense weights, written by one process of a run."""

_ROWS = re.compile(r"(.+)\.(\d{4})-(\d{4})")


def rows_part(store: str = "model", buckets: range = ALL_BUCKETS) -> str:
    """Returns the name of the part for buckets of a store.

    >>> rows_part("tower.embeddings", range(0, 512))
    'tower.embeddings.0000-0512'
    """
    begin, end = bucket_bounds(buckets)
    name = f"{store}.{begin:04d}-{end:04d}"
    require_part(name)
    return name


def store_of(part: str) -> tuple[str, range] | None:
    """Returns the store and the buckets of a part; None if the part does not hold rows.

    >>> store_of("model.0000-1024"), store_of("dense")
    (('model', range(0, 1024)), None)
    """
    found = _ROWS.fullmatch(part)
    if found is None or not int(found[2]) < int(found[3]) <= len(ALL_BUCKETS):
        return None
    return found[1], range(int(found[2]), int(found[3]))


def require_part(name: str) -> None:
    """Rejects an invalid part name.

    Raises:
        InvalidArgumentError: the name is invalid; the message describes valid names.
    """
    if not is_name(name) or (name != DENSE_PART and store_of(name) is None):
        raise InvalidArgumentError(
            f"delta log: a part is called {DENSE_PART!r}, or like 'model.0000-1024' by store and buckets, got {name!r}"
        )
