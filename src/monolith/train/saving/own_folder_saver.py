"""Saves and restores a synchronous run whose ranks have a directory each, which no other rank needs to see.

``<model_dir>/index-0001`` is the directory of rank 1: a model directory like any other, with the dense weights, which
are the same on all ranks, the rows of this rank, and the input positions of all ranks (`checkpoint.rank_folders`).
Ranks commit a checkpoint when all of them have written theirs, and delete older ones when all have committed. So
whenever a rank is killed there is a checkpoint that all of them have, and they resume from the newest such one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from monolith.checkpoint import (
    Catalog,
    claimed_generation,
    folder_of_rank,
    id_of,
    open_folder,
    read_manifest,
    split_path,
)
from monolith.checkpoint.restore import LoadedCheckpoint, Parts, Prepared
from monolith.collective.sharded import OwnRows, own_cut, sharded_stores, stamps_from_plain, stamps_to_plain
from monolith.errors import FailedPreconditionError, OpError
from monolith.files import join
from monolith.tables import ALL_BUCKETS, OwnerClock
from monolith.train._rank_words import RankAgreement
from monolith.train.saving.rank_saver import RankSaver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.checkpoint import (
        CheckpointWriteConfig,
        GenerationClaim,
        RestoreConfig,
        SavedCheckpoint,
        Saver,
        Staging,
        StateCut,
        StoreCut,
        TrainState,
    )
    from monolith.train.strategies.rank_steps import RankSteps

__all__ = ["OwnFolderSaver"]

P = TypeVar("P", Prepared, LoadedCheckpoint)


class _Place(NamedTuple):
    """The directories of a run."""

    model_dir: str
    """That has them."""
    name: str = ""
    """A folder of each that is meant; empty: itself."""

    def of(self, rank: int) -> str:
        folder = folder_of_rank(self.model_dir, rank)
        return join(folder, self.name) if self.name else folder


class OwnFolderSaver(RankSaver):
    """The checkpoints of a synchronous run, of which each rank keeps its part in a directory of its own.

    Args:
        model_dir: Has the directories of the ranks.
        part: The run.
        name: A folder inside the directory of each rank, for other checkpoints; empty: that directory.
        options: The fields of `SaverConfig`, by name.
    """

    def __init__(self, model_dir: str, part: RankSteps, *, name: str = "", **options: Any) -> None:
        self._place = _Place(model_dir, name)
        super().__init__(self._place.of(part.rank), part, **options)
        self._saving_words = RankAgreement(self._saving, "saving")
        self._order_words = self._words
        self._above = 0
        self._is_told = False
        self._rows: dict[str, OwnRows] = {}

    def beside(self, name: str, **options: Any) -> Saver:
        """Returns a saver for other checkpoints of the run."""
        return OwnFolderSaver(self._place.model_dir, self._part, name=name, **options)

    def source_of(self, from_dir: str) -> str:
        """Returns the directory of this rank in another model directory, or that itself if it has none for ranks."""
        own = _Place(from_dir, self._place.name).of(self._part.rank)
        return own if Catalog(open_folder(own), self._wanted.basename).newest_first() else from_dir

    @property
    def _writes_dense(self) -> bool:
        return True

    # Saving

    def begin(self, *, preparing: TrainState | None = None) -> None:
        """Locks the directory of each rank; an error on one is raised on all. All have one generation."""
        if self._is_begun and not self._save_failed and preparing is None:
            return
        if not self._is_begun:
            self._above = max(self._words.run_on_all("generations", self._generation_here))
        self._words.run_on_all(
            "taking the directories of ranks", lambda: super(RankSaver, self).begin(preparing=preparing)
        )
        self._is_begun, self._save_failed = True, False

    def _generation_here(self) -> int:
        committed = self._catalog.highest_generation()
        return max(committed, claimed_generation(self._folder, above=committed))

    def _highest_generation(self) -> int:
        return self._above

    def create_state_file(self) -> None:
        """Creates the state file, on every rank."""
        self._words.run_on_all("the state files", super(RankSaver, self).create_state_file)

    def _take_cut(self, state: TrainState, *, staging: Staging | None) -> StateCut:
        cut = super()._take_cut(state, staging=staging)
        return replace(cut, stores=_own_parts(cut.stores))

    def _order(self, state: TrainState, *, in_background: bool) -> CheckpointWriteConfig:
        self._order_words = self._saving_words if in_background else self._words
        created = float(self._words.broadcast("the time of a checkpoint", self._wanted.clock.now))
        return replace(super()._order(state, in_background=in_background), created=created)

    def _write(self, cut: StateCut, order: CheckpointWriteConfig) -> SavedCheckpoint:
        self._is_told = False
        try:
            saved = super(RankSaver, self)._write(cut, order)
            self._agree()
        except BaseException as error:
            self._save_failed = True
            if not self._is_told:  # the others wait for the outcome of this rank
                with suppress(OpError):
                    self._agree(error)
            raise
        return saved

    def _before_commit(self, claim: GenerationClaim) -> None:
        super()._before_commit(claim)
        self._agree()

    def _after_commit(self) -> None:
        self._agree()

    def _agree(self, error: BaseException | None = None) -> None:
        """Exchanges the outcomes of all ranks; raises the error of any rank on all of them."""

        def told() -> None:
            if error is not None:
                raise error

        try:
            self._order_words.run_on_all("how a save goes", told)  # the same words whether it fails or not
        except BaseException:
            self._is_told = True
            raise

    # Restoring

    def restore(
        self, state: TrainState, path: str | None = None, *, options: RestoreConfig | None = None
    ) -> SavedCheckpoint | None:
        """Restores as `Saver.restore`; a path in rank 0's directory means that of the same name on each rank."""
        if path is not None:
            folder, prefix = split_path(path)
            path = f"{self.model_dir}/{prefix}" if folder == self._root_of_first() else path
        return super().restore(state, path, options=options)

    def _root_of_first(self) -> str:
        return Catalog(open_folder(self._place.of(0)), self._wanted.basename).root

    def _candidates(self) -> list[str]:
        """Returns the checkpoints that all ranks have; if none has any, those of the model directory."""
        own: dict[str, list[Any]] = {}

        def look() -> list[list[Any]]:
            own.update(_identities(self._catalog))
            return list(own.values())

        of_ranks: list[list[list[Any]]] = self._words.run_on_all("the checkpoints of ranks", look)
        merged = Catalog(open_folder(self._place.model_dir), self._wanted.basename)
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
            f"restore: each rank must have checkpoints in its directory, '{self._place.of(0)}' and so on, got some of"
            f" ranks {there}, none of ranks {missing}; bring their directories back, or begin with another model_dir"
        )

    def _restore(self, path: str, state: TrainState, options: RestoreConfig | None) -> SavedCheckpoint:
        self._rows = {}
        self._is_told = True  # until all have read and checked theirs, what one raises all raise
        restored: list[SavedCheckpoint] = []

        def restore() -> dict[str, list[list[Any]]]:
            restored.append(super(OwnFolderSaver, self)._restore(path, state, options))
            return {name: stamps_to_plain(rows.stamps.values()) for name, rows in self._rows.items()}

        answers: list[dict[str, list[list[Any]]]] = self._after_reading("restoring rows", restore)
        for name, store in sharded_stores(state.stores).items():
            plain = next((each[name] for each in answers if name in each), [])
            clock = OwnerClock(ALL_BUCKETS, stamps_from_plain(plain))
            store.resume(applied=[clock], generation=restored[0].generation)
        return restored[0]

    def _after_reading(self, what: str, work: Callable[[], Any]) -> list[Any]:
        """Returns what `work` returns on each rank; an error of any rank is raised on all, after all have read."""
        failed: Exception | None = None
        value: Any = None
        try:
            value = work()
        except Exception as error:
            if self._is_told:
                raise
            failed = error

        def tell() -> Any:
            if failed is not None:
                raise failed
            return value

        return self._words.run_on_all(what, tell)

    def _require_readable(self, path: str, state: TrainState, options: RestoreConfig | None) -> None:
        """Ranks read their tables by themselves, too, and agree afterwards."""

    def _parts(self, state: TrainState) -> Parts:
        stores = sharded_stores(state.stores)
        if not stores:
            return super()._parts(state)
        own = {name: store.owned[self._part.rank] for name, store in stores.items()}
        self._rows = {name: OwnRows(store, own[name]) for name, store in stores.items() if own[name]}
        return Parts(rows=self._rows)

    def _all_or_none(self, prepare: Callable[[], P]) -> P:
        prepared = super()._all_or_none(prepare)
        self._is_told = False
        return prepared


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
