"""File sets of ByteDance Monolith: `<base>-%05d-of-%05d`, complete or rejected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from monolith.errors import AlreadyExistsError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SHARD_NAME = re.compile(r"-(\d{5})-of-(\d{5})")


def validate_sharded_files(base: str, filenames: Iterable[str]) -> int:
    """Returns the number of shards of a complete set of files; ignores other names, such as temporary ones.

    Raises:
        InvalidArgumentError: a file of another base, differing totals, a missing shard, or none at all.
    """
    total: int | None = None
    shards: set[int] = set()
    for filename in filenames:
        if not filename.startswith(base):
            raise InvalidArgumentError(f"Filename {filename} doesn't belong to {base}")
        match = _SHARD_NAME.fullmatch(filename[len(base) :])
        if match is None:
            continue
        shard, count = int(match[1]), int(match[2])
        total = count if total is None else total
        if count != total:
            raise InvalidArgumentError(f"Filename {filename} doesn't match nshards. {total}")
        if shard >= total:
            raise InvalidArgumentError(f"Shard {shard}exceeds {total} for {filename}")
        shards.add(shard)
    if total is None:
        raise InvalidArgumentError(f"There is no valid sharded files for {base}")
    for shard in range(total):
        if shard not in shards:
            raise InvalidArgumentError(f"Shard {shard} doesn't show up for {base}")
    return total


def shards_of(base: Path) -> list[Path]:
    """Returns the files of a complete set, in order."""
    total = validate_sharded_files(str(base), (str(path) for path in _siblings(base)))
    return [shard_path(base, shard, total) for shard in range(total)]


def _siblings(base: Path) -> list[Path]:
    """Returns files whose names begin with the base's and a dash; a glob would read the base as a pattern."""
    if not base.parent.is_dir():
        return []
    return sorted(path for path in base.parent.iterdir() if path.name.startswith(f"{base.name}-"))


def shard_path(base: Path, shard: int, total: int) -> Path:
    """Returns the path of one shard."""
    return base.with_name(f"{base.name}-{shard:05d}-of-{total:05d}")


def refuse_other_totals(base: Path, total: int) -> None:
    """Raises AlreadyExistsError if files of the base belong to a set of another size: together they are no set."""
    for path in _siblings(base):
        match = _SHARD_NAME.fullmatch(path.name[len(base.name) :])
        if match is not None and int(match[2]) != total:
            raise AlreadyExistsError(f"{path}: belongs to an earlier dump of {match[2]} shards; remove it first")
