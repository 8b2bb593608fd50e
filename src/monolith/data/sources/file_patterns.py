"""Which files a queue hands out: patterns that are looked up one after another, as their files are needed."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
from itertools import groupby
from typing import TYPE_CHECKING, Any

from monolith.data.sources.file_finding import find_files
from monolith.data.sources.partitions import expand_ranges
from monolith.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FilePatterns"]

_LOG = logging.getLogger(__name__)


class FilePatterns:
    """Paths, globs, ranges and URLs, in the order in which they are expanded. Thread-safe.

    Args:
        paths: See `FileSet`.
        seed: Seed that shuffles the files.
        storage_options: For the file system of URLs.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self._patterns = [pattern for path in given for pattern in expand_ranges(os.fspath(path))]
        groups = groupby(self._patterns, key=glob.has_magic)
        self._look_ups = [
            group for is_pattern, each in groups for group in ([[one] for one in each] if is_pattern else [list(each)])
        ]
        self._options = dict(storage_options or {})
        self.seed = seed
        self.digest = hashlib.sha256(repr((self._patterns, seed)).encode()).hexdigest()[:16]
        """A short text that differs when patterns or seed do."""

    def __len__(self) -> int:
        """Times that files are looked up: by a pattern, or by all names that stand side by side."""
        return len(self._look_ups)

    def find(self, number: int) -> list[str]:
        """Returns the files of one look-up."""
        found = [file for pattern in self._look_ups[number] for file in find_files(pattern, self._options)]
        if not found:
            _LOG.warning("no file matches %r", self._look_ups[number][0])
        return found

    def nothing_found(self) -> NotFoundError:
        """Returns what to raise when all were looked up, and there is no file."""
        return NotFoundError(f"no file matches {', '.join(map(repr, self._patterns)) or 'an empty list of paths'}")
