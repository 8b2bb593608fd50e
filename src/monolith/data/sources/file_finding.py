"""Files by name or pattern, local or at a URL of fsspec."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import fsspec

from monolith.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["find_files", "open_file", "require_known_url"]

_ARCHIVES = ("zip", "tar", "libarchive")


def find_files(pattern: str, options: Mapping[str, Any]) -> list[str]:
    """Returns the files that match, in no order; a name without a pattern in it is taken as it stands."""
    is_local = "://" not in pattern
    require_known_url(pattern)
    # A name that exists is meant as it stands, whatever characters it has.
    if not glob.has_magic(pattern) or (is_local and Path(pattern).is_file()):
        return [pattern]
    if not is_local:
        system, place = fsspec.core.url_to_fs(pattern, **options)
        entries = system.glob(place, detail=True)
        found = [system.unstrip_protocol(name) for name, entry in entries.items() if entry["type"] != "directory"]
    else:
        found = [
            name
            for name in glob.glob(pattern, recursive=True)  # noqa: PTH207 - any pattern, absolute or not
            if not Path(name).is_dir()
        ]
    return found


def open_file(path: str, options: Mapping[str, Any]) -> BinaryIO:
    """Returns a file, open to read from its start.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it is a folder, or no file system is known by such a name.
    """
    require_known_url(path)
    try:
        if "://" in path:
            return cast("BinaryIO", fsspec.open(path, "rb", **options).open())
        return Path(path).open("rb", buffering=0)
    except FileNotFoundError as error:
        raise NotFoundError(f"file '{path}': there is no such file") from error
    except IsADirectoryError as error:
        raise InvalidArgumentError(f"file '{path}': it is a folder; name its files, as in '{path}/*'") from error


def require_known_url(path: str) -> None:
    """Refuses a URL without a file system, with an alternative in the message; paths and other URLs pass.

    Raises:
        InvalidArgumentError: there is no such file system, or it is an archive.
    """
    protocol, mark, _ = path.partition("://")
    if not mark:
        return
    if protocol == "kafka":
        raise InvalidArgumentError(
            f"'{path}': a topic of Kafka is no file; read it by KafkaDataset('topic', 'host:port'), look into it by"
            " monolith data peek kafka://host:port/topic, and write to it with Kafka's own tools"
        )
    if protocol in _ARCHIVES:
        raise InvalidArgumentError(
            f"'{path}': files are not read out of archives, which cannot be read from a position on; unpack it, or"
            " compress each file, as x.csv.gz"
        )
    if protocol not in fsspec.available_protocols():
        known = "file://, s3://, gs://, hdfs://, http://, memory://"
        raise InvalidArgumentError(f"'{path}': fsspec has no file system {protocol}://; it supports {known} and others")
