"""The checkpoints of a model directory, and the order in which to try them."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.checkpoint.folder import open_folder
from monolith.checkpoint.manifest import SUFFIX, Manifest
from monolith.checkpoint.state_files import checkpoint_exists, read_checkpoint_state, split_path
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError
from monolith.files import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.checkpoint.folder import Folder, FolderPath
    from monolith.checkpoint.protos.checkpoint_state_pb2 import CheckpointState


logger = logging.getLogger(__name__)

_STEP = re.compile(r"(?P<basename>.+)-(?P<step>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint that was committed."""

    path: str
    """Its prefix: files are `<path>.manifest` and so on."""
    step: int
    generation: int


def prefix_of(basename: str, step: int, *, padded: bool = False) -> str:
    """Returns ``model.ckpt-60``; padded to eight digits: ``model.ckpt-00000060``."""
    return f"{basename}-{step:08d}" if padded else f"{basename}-{step}"


def step_of(path: str) -> int:
    """Returns the step of a prefix.

    Raises:
        InvalidArgumentError: it does not end in a step.
    """
    match = _STEP.fullmatch(path)
    if match is None:
        raise InvalidArgumentError(f"checkpoint path must end in -<step>, got {path!r}")
    return int(match["step"])


def read_manifest(path: str) -> Manifest:
    """Reads the manifest of the checkpoint at a full path.

    Raises:
        NotFoundError: there is no such checkpoint.
        DataLossError: its manifest is damaged.
    """
    folder, prefix = split_path(path)
    return manifest_of(open_folder(folder), prefix)


def manifest_of(folder: Folder, prefix: str) -> Manifest:
    """Reads the manifest of a checkpoint of a folder.

    Raises:
        NotFoundError: there is no such checkpoint.
        DataLossError: its manifest is damaged, or is that of another checkpoint.
    """
    name = f"{prefix}{SUFFIX}"
    origin = f"file '{folder.place(name)}'"
    manifest = Manifest.from_bytes(folder.read(name), origin=origin)
    match = _STEP.fullmatch(prefix)
    if match is None or int(match["step"]) != manifest.step:
        raise DataLossError(f"{origin}: it is the manifest of step {manifest.step}; was it copied or renamed?")
    foreign = [name for name in sorted(manifest.names) if not name.startswith(f"{prefix}.")]
    if foreign:
        raise DataLossError(f"{origin}: {foreign[0]!r} belongs to another checkpoint; was it copied or renamed?")
    return manifest


def require_path(root: str, path: str) -> str:
    """Returns the full path of a checkpoint given by a user: a prefix, with or without its folder, or one of its files.

    Raises:
        InvalidArgumentError: there is no such checkpoint. The text is that of ByteDance Monolith.
    """
    text = path.removesuffix(SUFFIX)
    for candidate in (text if "/" in text else f"{root}/{text}", f"{root}/{text}"):
        full = full_local_path(candidate)
        if checkpoint_exists(full):
            return full
    raise InvalidArgumentError(f"The passed save_path is not a valid checkpoint: {path}")


def full_local_path(path: str) -> str:
    """Returns an absolute path on this machine; paths of other file systems as given."""
    local = local_path(path)
    return path if local is None else str(local.absolute())


class Catalog:
    """The checkpoints of one basename in one folder. One thread at a time; it only reads."""

    def __init__(self, folder: Folder, basename: str, *, filename: str = "checkpoint") -> None:
        self.folder = folder
        """The folder."""
        self.basename = basename
        """First part of the prefixes of the checkpoints."""
        self._filename = filename
        self.root = full_local_path(folder.path)
        """Path of the folder, as full paths begin."""

    def state(self) -> CheckpointState | None:
        """Returns the contents of the file `checkpoint`."""
        return read_checkpoint_state(self.folder, self._filename)

    def committed(self) -> list[str]:
        """Returns full paths of everything with a manifest, by step."""
        steps = []
        for name in self.folder.names():
            prefix = name.removesuffix(SUFFIX)
            match = _STEP.fullmatch(prefix)
            if name.endswith(SUFFIX) and match is not None and match["basename"] == self.basename:
                steps.append((int(match["step"]), f"{self.root}/{prefix}"))
        return [path for _, path in sorted(steps)]

    def highest_generation(self) -> int:
        """Returns the highest generation of all readable manifests; 0 without any."""
        return max((key[0] for key in map(_age, self.committed()) if key is not None), default=0)

    def listed(self) -> list[str]:
        """Returns the checkpoints for retention: existing ones that `checkpoint` lists, then those committed later.

        A process killed between the commit and the update of `checkpoint` leaves such a later one.
        """
        listed = _present(self.state())
        return listed + _later(listed, _ages([*listed, *self.committed()]))

    def newest_first(self) -> list[str]:
        """Returns the checkpoints in the order to try them: that of `checkpoint`, then the others, newest first.

        Those committed after `checkpoint` was written come before the one it points to.
        """
        state = self.state()
        listed = _present(state)
        chosen = [state.model_checkpoint_path] if state is not None else []
        ages = _ages([*listed, *self.committed()])
        rest = sorted(ages, key=lambda path: ages[path] or _NO_AGE, reverse=True)
        return list(dict.fromkeys([*reversed(_later(listed, ages)), *chosen, *rest]))


_NO_AGE = (0, -1)
"""Below that of every checkpoint."""


def _ages(paths: list[str]) -> dict[str, tuple[int, int] | None]:
    """Returns the age of each path; reads each manifest once."""
    return {path: _age(path) for path in dict.fromkeys(paths)}


def _later(listed: list[str], ages: Mapping[str, tuple[int, int] | None]) -> list[str]:
    """Returns the paths committed after everything that is listed, oldest first."""
    newest = max((ages[path] or _NO_AGE for path in listed), default=_NO_AGE)
    return [path for age, path in sorted((age, path) for path, age in ages.items() if age) if age > newest]


def _present(state: CheckpointState | None) -> list[str]:
    """Returns the listed paths that exist, or cannot be checked: a warning is logged when one is used."""
    return [] if state is None else [path for path in state.all_model_checkpoint_paths if _may_exist(path)]


def _may_exist(path: str) -> bool:
    try:
        return checkpoint_exists(path)
    except OpError:
        return True


def _age(path: str) -> tuple[int, int] | None:
    """Returns generation and step; None if the manifest cannot be read."""
    try:
        manifest = read_manifest(path)
    except NotFoundError:
        return None
    except OpError as error:
        logger.warning("checkpoint '%s': %s", path, error)
        return None
    return manifest.generation, manifest.step


_BASENAME = "model.ckpt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTables:
    """The snapshots of one checkpoint."""

    path: str
    step: int
    folders: Mapping[int, str]
    """Id of the snapshot of a store -> its folder."""


def committed_names(model_dir: FolderPath) -> frozenset[str]:
    """Returns names that change when a checkpoint is committed or removed: a cheap check for changes.

    Raises:
        OpError: the directory cannot be read.
    """
    return frozenset(name for name in open_folder(model_dir).names() if name.endswith(SUFFIX))


def saved_tables(model_dir: FolderPath) -> list[SavedTables]:
    """Returns the checkpoints with tables of a model directory, the newest first; skips those that cannot be read."""
    folder = open_folder(model_dir)
    catalog = Catalog(folder, _BASENAME)
    checkpoints = []
    for path in catalog.newest_first():
        try:
            manifest = read_manifest(path)
        except OpError as error:
            logger.warning("checkpoint '%s': %s", path, error)
            continue
        if manifest.kind == "full":
            folders = {tables.snapshot_id: folder.place(tables.folder) for tables in manifest.tables.values()}
            checkpoints.append(SavedTables(path=path, step=manifest.step, folders=folders))
    return checkpoints
