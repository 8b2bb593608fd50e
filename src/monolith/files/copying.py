"""Copies files and trees between any two file systems, with retries."""

from __future__ import annotations

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import fsspec

from monolith.background import Backoff
from monolith.clock import SystemClock
from monolith.errors import AlreadyExistsError, FileUnavailableError, NotFoundError, OpError
from monolith.files.paths import local_path, refuse_special_file
from monolith.files.storage import storage_of

if TYPE_CHECKING:
    from monolith.clock import Clock

_log = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
_CHUNK_BYTES = 8 << 20


def CopyFile(  # noqa: N802 - the established name, and order of arguments
    src: str,
    dst: str,
    overwrite: bool = True,
    skip_nonexist: bool = True,
    max_retries: int = 5,
    *,
    clock: Clock | None = None,
) -> None:
    """Copies a file; a reader of `dst` sees the old file or the new one, never a part. Missing folders are created.

    Args:
        src: A path on any file system.
        dst: Another one.
        overwrite: Whether an existing file is replaced.
        skip_nonexist: Whether a missing source is ignored; files of a running job come and go.
        max_retries: Attempts in all; the waits between them are 0.1 s, 0.2 s, 0.4 s, ...
        clock: Measures the wait.

    Raises:
        InvalidArgumentError: There is a device, a pipe or a socket at `dst`.
        NotFoundError: There is no source.
        AlreadyExistsError: There is a file at `dst`, which was not to be replaced.
        FileUnavailableError: No attempt succeeded; its cause is the error of the last one.
    """
    _require_positive("max_retries", max_retries)
    refuse_special_file(dst)
    if not overwrite and _exists(dst):
        raise AlreadyExistsError(f"CopyFile: {dst} exists and overwrite is False; not replaced by {src}")
    clock = clock or SystemClock()
    for attempt, pause in enumerate(Backoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, tries=max_retries), 1):
        try:
            _copy(src, dst)
        except FileNotFoundError as error:
            # Only the source's absence: a folder of the target that vanished is worth another try.
            if not _exists(src):
                if skip_nonexist:
                    _log.info("CopyFile: skipped %s, which does not exist", src)
                    return
                raise NotFoundError(f"CopyFile: there is no {src} to copy to {dst}") from error
            failure: OSError | OpError = error
        except (OSError, OpError) as error:
            failure = error
        else:
            return
        _log.warning("CopyFile: attempt %d of %d for %s failed: %s", attempt, max_retries, src, failure)
        if pause is None:
            raise FileUnavailableError(f"CopyFile: cannot copy {src} to {dst} in {max_retries} attempts") from failure
        clock.sleep(pause)


def CopyRecursively(  # noqa: N802 - the established name, and order of arguments
    src: str,
    dst: str,
    max_workers: int = 1,
    skip_nonexist: bool = True,
    max_retries: int = 5,
    *,
    clock: Clock | None = None,
) -> None:
    """Copies a folder with everything in it; removes `dst` first.

    Args:
        src: A folder on any file system.
        dst: Path of the copy.
        max_workers: Threads that copy files.
        skip_nonexist: Whether a missing source, or a file that vanishes during the copy, is ignored.
        max_retries: Attempts in all for each file.
        clock: Measures the wait between them.

    Raises:
        ValueError: There is no source, it is no folder, or one of the two is inside the other.
        OpError: As `CopyFile`, for a file.
    """
    _require_positive("max_workers", max_workers)
    _require_positive("max_retries", max_retries)
    source, source_root = _open(src)
    target, target_root = _open(dst)
    if not source.exists(source_root):
        if skip_nonexist:
            _log.info("CopyRecursively: skipped %s, which does not exist", src)
            return
        raise ValueError(f"CopyRecursively: there is no {src} to copy to {dst}")
    if not source.isdir(source_root):
        raise ValueError(f"CopyRecursively: {src} is no folder; use CopyFile")
    if source == target and _overlap(source_root, target_root):
        # Removing the target would remove the source.
        raise ValueError(f"CopyRecursively: {src} and {dst} lie inside each other; choose a folder apart")
    if target.exists(target_root):
        target.rm(target_root, recursive=True)
    target.makedirs(target_root, exist_ok=True)

    def copy(name: str) -> None:
        path, copied = (files.unstrip_protocol(f"{root}/{name}") for files, root in roots)
        CopyFile(path, copied, skip_nonexist=skip_nonexist, max_retries=max_retries, clock=clock)

    roots = ((source, source_root), (target, target_root))
    names = _make_folders(source, source_root, target, target_root)
    with ThreadPoolExecutor(max_workers, thread_name_prefix="copy") as threads:
        list(threads.map(copy, names))


def _make_folders(source: Any, source_root: str, target: Any, target_root: str) -> list[str]:
    """Returns the names of all files under the source, and creates their folders in the target, empty ones too."""
    names = []
    for folder, folders, files in source.walk(source_root):
        inside = str(folder)[len(source_root) :].strip("/")
        prefix = f"{inside}/" if inside else ""
        for name in folders:
            target.makedirs(f"{target_root}/{prefix}{name}", exist_ok=True)
        names += [f"{prefix}{name}" for name in files]
    return names


def _copy(src: str, dst: str) -> None:
    storage, name = storage_of(dst.rstrip("/"))
    local = local_path(src)
    if local is not None:
        local.stat()
        storage.make()
        storage.put(name, local)
        return
    source, source_path = _open(src)
    with source.open(source_path, "rb") as reader:
        storage.make()
        with storage.begin(name) as copy:
            shutil.copyfileobj(reader, copy, _CHUNK_BYTES)
            copy.commit()


def _open(path: str) -> tuple[Any, str]:
    files, name = fsspec.core.url_to_fs(path)
    files.invalidate_cache(name)  # remote file systems cache listings, and other processes write there
    return files, str(name).rstrip("/")


def _exists(path: str) -> bool:
    files, name = _open(path)
    return bool(files.exists(name))


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"copy: {name} must be >= 1, got {value}")
