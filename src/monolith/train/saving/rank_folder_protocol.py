"""How ranks save and restore together if each has a directory of its own, which no other rank needs to see.

``<model_dir>/index-0001`` is the directory of rank 1: a model directory like any other, with the dense weights, which
are the same on all ranks, the rows of this rank, and the input positions of all ranks.
Ranks commit a checkpoint when all of them have written theirs, and delete older ones when all have committed. So
whenever a rank is killed there is a checkpoint that all of them have, and they resume from the newest such one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.checkpoint import (
    Catalog,
    SaveProtocol,
    claimed_generation,
    folder_of_rank,
    full_local_path,
    id_of,
    read_manifest,
    split_path,
    take_cut,
)
from monolith.checkpoint.restore import ALL_PARTS, LoadedCheckpoint, Parts, Prepared
from monolith.collective.sharded import OwnRows, own_cut, sharded_stores, stamps_from_plain, stamps_to_plain
from monolith.errors import FailedPreconditionError, OpError
from monolith.files import join, open_storage
from monolith.tables import ALL_BUCKETS, OwnerClock
from monolith.train._rank_words import RankAgreement
from monolith.train.saving.rank_protocol import RankSaveProtocol, prepare_on_all, with_batches_of_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.checkpoint import SavedCheckpoint, Staging, StateCut, StoreCut, TrainState
    from monolith.train.strategies.rank_steps import RankSteps

P = TypeVar("P", Prepared, LoadedCheckpoint)


class RankFolderSaveProtocol(RankSaveProtocol):
    """Ranks that have a directory each, with the rows of the rank and the dense weights.

    Args:
        model_dir: Has the directories of the ranks.
        part: The run.
        name: A folder inside the directory of each rank, for other checkpoints; empty: that directory.
    """

    def __init__(self, model_dir: str, part: RankSteps, *, name: str = "") -> None:
        super().__init__(part)
        self._model_dir = model_dir
        self._name = name
        self._saving_words = RankAgreement(self._saving, "saving")
        self._save_words = self._words
        self._is_told = False
        """Whether all ranks have the error of this one, in the save or restore that runs."""
        self._rows: dict[str, OwnRows] = {}

    def _folder_of(self, rank: int, model_dir: str | None = None) -> str:
        """Returns the directory of a rank, in this model directory or another."""
        folder = folder_of_rank(self._model_dir if model_dir is None else model_dir, rank)
        return join(folder, self._name) if self._name else folder

    @property
    def folder(self) -> str:
        """The directory of this rank."""
        return self._folder_of(self._part.rank)

    def run_on_writers(self, what: str, work: Callable[[], None]) -> None:
        """Runs `work` on all ranks."""
        self._words.run_on_all(what, work)

    def subfolder(self, name: str) -> SaveProtocol:
        """Returns the protocol of a folder inside the directory of each rank."""
        return RankFolderSaveProtocol(self._model_dir, self._part, name=name)

    # Saving

    def generation_floor(self, catalog: Catalog) -> int:
        """Returns the highest generation of all ranks, so that all begin the same one."""

        def highest_here() -> int:
            committed = catalog.highest_generation()
            return max(committed, claimed_generation(catalog.folder, above=committed))

        highest: list[int] = self._words.run_on_all("generations", highest_here)
        return max(highest)

    def take_cut(self, state: TrainState, *, staging: Staging | None, dense_only: bool) -> StateCut:
        """Returns the cut of this rank: dense weights, and its rows."""
        cut = with_batches_of_all(take_cut(state, staging=staging, dense_only=dense_only), self._part)
        return replace(cut, stores=_own_parts(cut.stores))

    def write(self, work: Callable[[], SavedCheckpoint], *, in_background: bool) -> SavedCheckpoint:
        """Writes on each rank; each commits when all have written, and succeeds when all have committed."""
        self._save_words = self._saving_words if in_background else self._words
        self._is_told = False
        try:
            saved = work()
            self.agree()
        except BaseException as error:
            if not self._is_told:  # the others wait for the outcome of this rank
                with suppress(OpError):
                    self._agree(error)
            raise
        return saved

    def agree(self) -> None:
        """Waits until all ranks have come as far; raises the error of any on all."""
        self._agree(None)

    def _agree(self, error: BaseException | None) -> None:
        def tell() -> None:
            if error is not None:
                raise error

        try:
            self._save_words.run_on_all("how a save goes", tell)  # the same words whether it fails or not
        except BaseException:
            self._is_told = True
            raise

    # Restoring

    def own_path(self, path: str) -> str:
        """Returns the checkpoint of this rank for a path in the directory of rank 0."""
        folder, prefix = split_path(path)
        is_of_first = folder == _root_of(self._folder_of(0))
        return f"{_root_of(self.folder)}/{prefix}" if is_of_first else path

    def source_of(self, model_dir: str, basename: str) -> str:
        """Returns the directory of this rank in another model directory, or that itself if it has none for ranks."""
        own = self._folder_of(self._part.rank, model_dir)
        return own if Catalog(open_storage(own), basename).newest_first() else model_dir

    def candidates(self, catalog: Catalog) -> list[str]:
        """Returns the checkpoints that all ranks have; if none has any, those of the model directory."""
        own: dict[str, list[Any]] = {}

        def look() -> list[list[Any]]:
            own.update(_identities(catalog))
            return list(own.values())

        of_ranks: list[list[list[Any]]] = self._words.run_on_all("the checkpoints of ranks", look)
        merged = Catalog(open_storage(self._model_dir), catalog.basename)
        others: list[str] = self._words.broadcast("the checkpoints of all ranks", merged.newest_first)
        if not any(of_ranks):
            return others
        common = [each for each in of_ranks[0] if all(each in has for has in of_ranks)]
        paths = {tuple(each): path for path, each in own.items()}
        found = [paths[tuple(each)] for each in common]
        if not common:  # another number of ranks has saved them
            found = self._words.broadcast("the checkpoints of rank 0", lambda: list(own))
        if not found and not others:
            raise FailedPreconditionError(self._without_any(of_ranks))
        is_newer = bool(others) and self._words.broadcast("the newest", lambda: _is_newer(others[0], found))
        return [*others, *found] if is_newer else [*found, *others]

    def _without_any(self, of_ranks: list[list[list[Any]]]) -> str:
        there = [rank for rank, each in enumerate(of_ranks) if each]
        missing = [rank for rank, each in enumerate(of_ranks) if not each]
        return (
            f"restore: each rank must have checkpoints in its directory, '{self._folder_of(0)}' and so on, got some of"
            f" ranks {there}, none of ranks {missing}; bring their directories back, or begin with another model_dir"
        )

    def restore(self, work: Callable[[], SavedCheckpoint], state: TrainState) -> SavedCheckpoint:
        """Restores the rows of each rank, and the last batches that all of them together have."""
        self._rows = {}
        self._is_told = True  # until all have read and checked theirs, what one raises all raise
        restored: list[SavedCheckpoint] = []
        failed: Exception | None = None
        try:
            restored.append(work())
        except Exception as error:
            if self._is_told:
                raise
            failed = error

        def tell() -> dict[str, list[list[Any]]]:
            if failed is not None:
                raise failed
            return {name: stamps_to_plain(rows.stamps.values()) for name, rows in self._rows.items()}

        answers: list[dict[str, list[list[Any]]]] = self._words.run_on_all("restoring rows", tell)
        for name, store in sharded_stores(state.stores).items():
            plain = next((each[name] for each in answers if name in each), [])
            clock = OwnerClock(ALL_BUCKETS, stamps_from_plain(plain))
            store.resume(applied=[clock], generation=restored[0].generation)
        return restored[0]

    def parts(self, state: TrainState) -> Parts:
        """Returns all parts, with the rows of this rank only."""
        stores = sharded_stores(state.stores)
        if not stores:
            return ALL_PARTS
        own = {name: store.owned[self._part.rank] for name, store in stores.items()}
        self._rows = {name: OwnRows(store, own[name]) for name, store in stores.items() if own[name]}
        return Parts(rows=self._rows)

    def prepare(self, prepare: Callable[[], P], *, check: Callable[[], None]) -> P:  # noqa: ARG002
        """Returns what each rank has read and checked, its tables, too, which it reads without the others."""
        prepared = prepare_on_all(prepare, self._words)
        self._is_told = False
        return prepared


def _root_of(folder: str) -> str:
    """Returns a directory as full paths begin."""
    return full_local_path(open_storage(folder).path)


def _own_parts(stores: Mapping[str, StoreCut]) -> dict[str, StoreCut]:
    """Returns the rows of this rank only; omits stores of which it has no buckets."""
    own: dict[str, StoreCut] = {}
    for name, each in stores.items():
        cut = own_cut(each.cut)
        if cut.applied[0].buckets:
            own[name] = each._replace(cut=cut)
        else:
            cut.release()
    return own


def _identities(catalog: Catalog) -> dict[str, list[Any]]:
    """Returns full path -> identity of its checkpoint, best first; omits unreadable ones."""
    found: dict[str, list[Any]] = {}
    for path in catalog.newest_first():
        with suppress(OpError):  # the catalog has logged it
            found[path] = list(id_of(read_manifest(path)))
    return found


def _is_newer(path: str, than: list[str]) -> bool:
    """Returns whether a checkpoint is newer than the first of others."""
    return not than or read_manifest(path).created > read_manifest(than[0]).created
