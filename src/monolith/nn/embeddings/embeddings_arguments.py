"""Arguments of `Embeddings`: their checks, the common settings of its tables, its store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from monolith.errors import InvalidArgumentError
from monolith.nn.slot import Slot, require_rate
from monolith.nn.table_defaults import current_table_defaults
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.local.store import LocalStore
from monolith.tables.row_optimizers import RowOptimizer
from monolith.tables.table_config import Segment, TableConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.nn.table_defaults import StoreFactory
    from monolith.tables.filters import AdmissionFilter
    from monolith.tables.store import Store


def check_arguments(slots: Mapping[str, Slot], optimizer: object, learning_rate: object) -> None:
    """Rejects slots, an optimizer or a learning rate of the wrong kind; the message shows what to write."""
    if not slots:
        raise InvalidArgumentError("Embeddings: at least one slot is needed, got none; write {'user': Slot(dim=16)}")
    for name, slot in slots.items():
        if not name or not isinstance(name, str):
            raise TypeError(f"Embeddings: names of slots must be non-empty texts, got {name!r}")
        if not isinstance(slot, Slot):
            raise TypeError(f"slot {name!r}: expected Slot(...), got {slot!r}; write Slot(dim=16)")
    if not isinstance(optimizer, RowOptimizer):
        raise TypeError(
            f"Embeddings: optimizer must be one of monolith.row_optimizers, got {optimizer!r}; torch's optimizers are"
            " for dense parameters"
        )
    if learning_rate is not None:
        require_rate(learning_rate, "Embeddings")


def table_defaults(
    admission: AdmissionFilter | None,
    *,
    seed: int,
    nonfinite: Literal["raise", "skip", "apply"],
    evict_every_seconds: float | None,
) -> TableConfig:
    """Returns the common settings of all tables: those of the module, then those of the runner."""
    given = current_table_defaults()
    config = TableConfig(
        [Segment(1)],
        seed=seed,
        nonfinite=nonfinite,
        admission=admission or given.admission or SlidingHashFilter(),
        evict_every_seconds=given.evict_every_seconds if evict_every_seconds is None else evict_every_seconds,
    )
    return config if given.initial_capacity is None else replace(config, initial_capacity=given.initial_capacity)


def store_of(store: Store | StoreFactory | None, configs: Mapping[str, TableConfig]) -> Store:
    """Returns the store that was given, or makes one for these tables."""
    if _is_store(store):
        return store  # type: ignore[return-value]  # it has a plan(): a store
    return store_factory(store)(configs)


def store_factory(store: Store | StoreFactory | None) -> StoreFactory:
    """Returns a function that makes stores like this one; a `LocalStore` where a finished store was given."""
    if store is None:
        return current_table_defaults().store or LocalStore
    if _is_store(store):
        return LocalStore
    if not callable(store):
        raise TypeError(f"Embeddings: store must be a Store or make one from table configs, got {store!r}")
    return store


def _is_store(store: Store | StoreFactory | None) -> bool:
    """Returns whether this is a store; a class of stores has the same attributes, so it is excluded first."""
    return store is not None and not isinstance(store, type) and hasattr(store, "plan")
