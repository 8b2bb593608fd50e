"""Rows that parameter servers keep: the stores of a model on them, and what they have when training begins."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from monolith.ps.client import PsStore
from monolith.tables import ALL_BUCKETS, RemoteRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.checkpoint import TrainState
    from monolith.ps.client import PsCluster
    from monolith.tables import Store, TableConfig
    from monolith.train._rank_words import RankAgreement


def server_stores(cluster: PsCluster) -> Callable[[Mapping[str, TableConfig]], Store]:
    """Makes the stores of one model on the servers, under names that every process of the run gives them alike."""
    numbers = itertools.count()

    def make(configs: Mapping[str, TableConfig]) -> Store:
        number = next(numbers)
        return PsStore(configs, servers=cluster, name=f"rows_{number}" if number else "rows")

    return make


def owners_of(state: TrainState) -> list[Any]:
    """Returns the objects that report which servers have state: of each store, and of dense weights on servers."""
    owners: list[Any] = [store.owners for store in state.stores.values() if isinstance(store, RemoteRows)]
    return owners if state.dense is None else [*owners, state.dense]


def set_initialized(owners: Sequence[Any]) -> None:
    """Marks all servers as initialized, until they restart."""
    for owner in owners:
        owner.set_initialized()


def empty_rows(state: TrainState) -> None:
    """Clears all rows for a new run, whatever some servers still have."""
    for store in state.stores.values():
        store.load([], buckets=ALL_BUCKETS, replace=True)
        store.resume(applied=[], generation=0)


def begin_rows_of_ranks(words: RankAgreement, state: TrainState, *, is_restored: bool) -> None:
    """Sets the rows of ranks to those saved with their weights, or to none; never to newer ones.

    Servers that kept running while the ranks restarted have rows of batches that the ranks will train again.
    """

    def begin() -> None:
        if not is_restored:
            empty_rows(state)
        set_initialized(owners_of(state))

    words.broadcast("the rows of the servers", begin)
    for store in state.stores.values():
        if isinstance(store, RemoteRows):
            store.refresh_newest_time()  # it may have the times of removed rows
