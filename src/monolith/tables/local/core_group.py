"""Builds the native group of some table configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables.schema import fnv1a_64

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.tables.filters import AdmissionFilter
    from monolith.tables.table_config import TableConfig


def build_core_group(configs: Sequence[TableConfig]) -> _core.Group:
    """Returns a native group of these tables, which must be in sorted-name order."""
    admission = _shared_admission(configs)
    caps = [_row_cap(config) for config in configs]
    specs = [_table_spec(config, cap) for config, cap in zip(configs, caps, strict=True)]
    return _core.Group(specs, None if admission is None else admission.kernel())


def _table_spec(config: TableConfig, max_rows: int) -> _core.TableSpec:
    spec = _core.TableSpec(
        config.name,
        serving=config.serving,
        skip_zero=config.skip_zero,
        seed=(config.seed + fnv1a_64(config.name)) % 2**64,  # equal ids of two tables start differently
        nonfinite=config.nonfinite,
        max_rows=max_rows,
        eviction=config.eviction,
    )
    for segment in config.segments:
        spec.add_segment(
            segment.dim, segment.initializer.kernel(), segment.optimizer.kernel(), segment.compressor.kernel()
        )
    spec.set_wide_slots(np.array(config.wide_slots, np.int32))
    spec.set_expiry(config.expire_days, *_by_slot(config.slot_expire_days), config.seconds_between_evictions)
    if config.filters_ids:
        spec.set_admission(config.min_count, *_by_slot(config.slot_min_counts))
    return spec


def _by_slot(values: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(values), np.int32), np.array(list(values.values()), np.int32)


def _row_cap(config: TableConfig) -> int:
    """Returns the rows that fit `max_bytes`; the size of a row is known to the core only, so a probe group is built."""
    if config.max_bytes is None:
        return config.max_rows or 0
    probe = _core.Group([_table_spec(config, 0)], None)
    return max(1, config.max_bytes // probe.row_bytes(0))


def _shared_admission(configs: Sequence[TableConfig]) -> AdmissionFilter | None:
    """Returns the one filter of the group: counts live in the buckets, which all its tables share."""
    wanted = [config for config in configs if config.filters_ids]
    for config in wanted[1:]:
        if config.admission != wanted[0].admission:
            raise InvalidArgumentError(
                f"tables {wanted[0].name!r} and {config.name!r}: tables of a group share one admission filter, got"
                f" {wanted[0].admission!r} and {config.admission!r}; use the same or two groups"
            )
    return wanted[0].admission if wanted else None
