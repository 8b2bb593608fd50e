"""Names of the files of a snapshot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from monolith.tables.history import ALL_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monolith.tables.snapshot.manifest import SnapshotManifest

_OURS = re.compile(r"buckets-\d{4}-\d{4}-[0-9a-f]{16}\.rows(\.tmp)?|manifest\.json(\.[0-9a-f]{8})?\.tmp")
"""Every name that a killed save may leave in the folder."""


def file_name(begin: int, end: int, snapshot_id: int) -> str:
    """Returns the name of the file of buckets [begin, end); the id separates it from files of the replaced snapshot."""
    return f"buckets-{begin:04d}-{end:04d}-{snapshot_id:016x}.rows"


def bucket_ranges(num_files: int, buckets: range = ALL_BUCKETS) -> Iterator[tuple[int, int]]:
    """Cuts consecutive buckets into `num_files` runs whose sizes differ by at most one."""
    size, rest = divmod(len(buckets), num_files)
    begin = buckets.start
    for number in range(num_files):
        end = begin + size + (number < rest)
        yield begin, end
        begin = end


def unlisted(names: Iterable[str], manifest: SnapshotManifest) -> list[str]:
    """Returns the names that a save makes and this manifest does not list."""
    listed = {file.name for file in manifest.files}
    return [name for name in names if _OURS.fullmatch(name) and name not in listed]
