"""Defaults of a runner for tables: the store, the admission filter and the initial size.

A model that is built inside `use_table_defaults` uses them wherever its own `Embeddings` names nothing else.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from monolith.tables import AdmissionFilter, Store, TableConfig

    StoreFactory: TypeAlias = Callable[[Mapping[str, TableConfig]], Store]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefaults:
    """Defaults for tables made while they are in force."""

    admission: AdmissionFilter | None = None
    """How occurrences are counted where a slot has a `min_count`; None: a `SlidingHashFilter`."""
    initial_capacity: int | None = None
    """Rows that a table has room for initially; None: it begins small."""
    evict_every_seconds: float | None = None
    """Event time within which steps scan every row once and remove those that have expired; 0: only `evict` does.
    None: an hour for each day of a table's shortest `expire_days`."""
    store: StoreFactory | None = None
    """Makes the store that keeps the rows; None: a `LocalStore`."""


_DEFAULTS: ContextVar[TableDefaults] = ContextVar("monolith_table_defaults", default=TableDefaults())  # noqa: B039


@contextmanager
def use_table_defaults(defaults: TableDefaults) -> Iterator[None]:
    """Applies these defaults to `Embeddings` made inside; fields that are None keep the outer values."""
    outer = _DEFAULTS.get()
    chosen = {
        field.name: getattr(outer if getattr(defaults, field.name) is None else defaults, field.name)
        for field in fields(TableDefaults)
    }
    token = _DEFAULTS.set(TableDefaults(**chosen))
    try:
        yield
    finally:
        _DEFAULTS.reset(token)


def current_table_defaults() -> TableDefaults:
    """Returns the innermost defaults."""
    return _DEFAULTS.get()
