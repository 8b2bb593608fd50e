"""The parts of a checkpoint: the snapshots with its tables, of each store or of each rank that saved its part."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from monolith import _core
from monolith.checkpoint.catalog import Catalog, read_manifest
from monolith.checkpoint.state_files import split_path
from monolith.errors import DataLossError, FailedPreconditionError, FileUnavailableError, NotFoundError, OpError
from monolith.files import join, open_storage
from monolith.tables import ALL_BUCKETS, shared_buckets
from monolith.tables.snapshot import MANIFEST_NAME, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from monolith.checkpoint.manifest import Manifest, TablesEntry
    from monolith.checkpoint.restore.store_restore import RestoredRows
    from monolith.files import Storage


_log = logging.getLogger(__name__)

_NAME = re.compile(r"index-\d{4,}")


class CheckpointId(NamedTuple):
    """Values that all parts of one checkpoint share, and no other checkpoint has."""

    generation: int
    step: int
    created: float


def id_of(manifest: Manifest) -> CheckpointId:
    """Returns the id of the checkpoint that a manifest is a part of."""
    return CheckpointId(manifest.generation, manifest.step, manifest.created)


def folder_of_rank(model_dir: str, rank: int) -> str:
    """Returns the directory of a rank, with the name that ByteDance Monolith uses.

    >>> folder_of_rank("models/clicks", 3)
    'models/clicks/index-0003'
    """
    return join(model_dir, f"index-{rank:04d}")


def parts_of_others(path: str, manifest: Manifest) -> list[str]:
    """Returns full prefixes of the visible parts of other ranks; none for a checkpoint without parts."""
    folder, prefix = split_path(path)
    parent, own = split_path(folder)
    if _NAME.fullmatch(own) is None:
        return []
    others = [name for name in open_storage(parent).names() if _NAME.fullmatch(name) and name != own]
    paths = [f"{parent}/{name}/{prefix}" for name in others]
    return [other for other in paths if _has_part(other, id_of(manifest))]


def newest_of_ranks(catalog: Catalog) -> list[str]:
    """Returns the checkpoints to try, the best first: those of ranks after or before those of the model directory."""
    paths = catalog.newest_first()
    first = folder_of_rank(catalog.folder.path, 0)
    try:
        if not catalog.folder.exists(split_path(first)[1]):
            return paths
        of_ranks = Catalog(open_storage(first), catalog.basename).newest_first()
    except FileUnavailableError as error:
        if not paths:
            raise
        _log.warning("restore: the directories of ranks are passed over: %s", error)
        return paths
    newer, older = (of_ranks, paths) if _created(of_ranks) > _created(paths) else (paths, of_ranks)
    return [*newer, *older]


def _created(paths: list[str]) -> float:
    """Returns the creation time of the first one that can be read."""
    for path in paths:
        try:
            return read_manifest(path).created
        except OpError:  # the catalog has logged it
            continue
    return 0.0


def _has_part(path: str, checkpoint: CheckpointId) -> bool:
    try:
        return id_of(read_manifest(path)) == checkpoint
    except OpError:
        return False


def snapshots_of(
    path: str, manifest: Manifest, rows: Mapping[str, RestoredRows], *, is_needed: Callable[[str], bool]
) -> dict[str, list[str]]:
    """Returns store -> the folders to read, which together have all it needs.

    Args:
        path: Prefix of the checkpoint, or of one part of it.
        manifest: Its manifest.
        rows: Targets of the tables.
        is_needed: Selects the stores to restore now; only their snapshots are opened.

    Raises:
        NotFoundError: parts that other ranks have saved are missing; names a bucket.
        DataLossError: a snapshot is not the one that the checkpoint was committed with.
        FailedPreconditionError: the model has other tables.
    """
    if not rows:
        return {}
    own = (path, manifest)
    others: list[tuple[str, Manifest]] | None = None
    if not manifest.tables:  # of a rank without buckets
        others = _others(path, manifest)
    saved_names = _matching(next((part.tables for _, part in [own, *(others or [])] if part.tables), {}), rows)
    folders: dict[str, list[str]] = {}
    for name in filter(is_needed, rows):
        needed = _wanted(rows[name])
        held = _held([own], saved_names[name])
        if _missing(needed, held.values()) is not None:
            others = _others(path, manifest) if others is None else others
            held |= _held(others, saved_names[name])
        _require_all(path, held, needed)
        folders[name] = [folder for folder, buckets in held.items() if shared_buckets(buckets, needed)]
    return folders


def _others(path: str, manifest: Manifest) -> list[tuple[str, Manifest]]:
    return [(other, read_manifest(other)) for other in parts_of_others(path, manifest)]


def _held(parts: Sequence[tuple[str, Manifest]], name: str) -> dict[str, range]:
    """Returns folder of a store in each part -> the buckets that it holds."""
    buckets_of: dict[str, range] = {}
    for path, manifest in parts:
        if name in manifest.tables:
            folder, entry = open_storage(split_path(path)[0]), manifest.tables[name]
            buckets_of[folder.place(entry.folder)] = _buckets(folder, entry)
    return buckets_of


def _buckets(folder: Storage, entry: TablesEntry) -> range:
    name = f"{entry.folder}/{MANIFEST_NAME}"
    if _core.crc32c(folder.read(name)) != entry.manifest_crc32c:
        raise DataLossError(f"file '{folder.place(name)}': not the one that this checkpoint was committed with")
    with closing(open_source(folder.place(entry.folder))) as source:
        return source.manifest.buckets


def _wanted(rows: RestoredRows) -> range:
    """Returns the buckets that a store needs: all, or the part of a rank."""
    buckets: range = getattr(rows, "buckets", ALL_BUCKETS)
    return buckets


def _require_all(path: str, folders: Mapping[str, range], needed: range) -> None:
    missing = _missing(needed, folders.values())
    if missing is not None:
        raise NotFoundError(
            f"checkpoint '{path}': bucket {missing} must be in one of its parts, which ranks save into index-<rank>"
            f" each, got those of {sorted(folders)}; let this process see the directories of all ranks, or start as"
            " many ranks as have saved it, each where its directory is"
        )


def _missing(needed: range, held: Iterable[range]) -> int | None:
    """Returns the first bucket that no part holds; None if all are held."""
    begin = needed.start
    for part in sorted(held, key=lambda part: part.start):
        if part.start <= begin:
            begin = max(begin, part.stop)
    return begin if begin < needed.stop else None


def _matching(tables: Collection[str], stores: Collection[str]) -> dict[str, str]:
    """Returns store -> the name under which it was saved."""
    if set(tables) == set(stores):
        return {name: name for name in stores}
    if len(tables) == len(stores) == 1:  # the module was renamed
        return dict(zip(stores, tables, strict=True))
    raise FailedPreconditionError(
        f"restore: the checkpoint has the tables of {sorted(tables)}, the model those of {sorted(stores)}; name the"
        " Embeddings modules as they were"
    )
