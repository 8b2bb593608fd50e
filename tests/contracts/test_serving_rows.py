"""Rows by their keys, on every engine that can be served: reads and overwrites without a plan and a worker."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.engines import SERVING, ServingFactory
from monolith.errors import InvalidArgumentError
from monolith.tables import (
    UNTOLD,
    KeyedRows,
    Segment,
    ServingRows,
    TableConfig,
    buckets_of_keys,
    compressors,
    keys_in,
    shared_buckets,
    write_keyed,
)

EXACT = compressors.Fp32()
TABLES = {
    "item": TableConfig([Segment(2, compressor=EXACT)], serving=True),
    "user": TableConfig([Segment(3, compressor=EXACT)], serving=True),
}
WIDE = {"shared": TableConfig([Segment(1, compressor=EXACT)], serving=True, wide_slots=(3, 7))}
WIDE_KEY = -(2**63) + 5  # of the first slot: its bucket is not in it


@pytest.fixture(params=sorted(SERVING))
def new_rows(request: pytest.FixtureRequest) -> ServingFactory:
    return SERVING[str(request.param)]


def keyed(store: ServingRows, *keys_of_tables: list[int]) -> KeyedRows:
    flat = np.array([key for keys in keys_of_tables for key in keys], np.int64)
    return buckets_of_keys(store.schema, flat, np.cumsum([0, *map(len, keys_of_tables)]))


def values_of(store: ServingRows, keys: KeyedRows) -> tuple[list[float], int]:
    found = store.lookup(keys)
    assert found.values.device.type == store.traits.device
    return found.values.cpu().tolist(), found.num_found


def test_an_engine_that_can_be_served_has_the_protocol(new_rows: ServingFactory) -> None:
    assert isinstance(new_rows(TABLES), ServingRows)


def test_rows_come_in_the_order_of_the_keys_and_zeros_for_those_without_one(new_rows: ServingFactory) -> None:
    store = new_rows(TABLES)
    wrote = np.arange(7, dtype=np.float32)
    assert write_keyed(store, keyed(store, [5, 6], [5]), wrote) == 3
    assert values_of(store, keyed(store, [6, 9, 6], [8, 5])) == ([2.0, 3.0, 0, 0, 2.0, 3.0, 0, 0, 0, 4.0, 5.0, 6.0], 3)
    assert values_of(store, keyed(store, [], [])) == ([], 0)
    assert store.stats().rows == 3


def test_the_last_of_equal_keys_is_kept_and_rows_are_overwritten(new_rows: ServingFactory) -> None:
    store = new_rows(TABLES)
    store.overwrite(keyed(store, [5, 5], []), np.array([1, 2, 3, 4], np.float32))
    assert values_of(store, keyed(store, [5], [])) == ([3.0, 4.0], 1)
    store.overwrite(keyed(store, [5], []), np.array([7, 8], np.float32))
    assert values_of(store, keyed(store, [5], [])) == ([7.0, 8.0], 1)


def test_a_weight_that_is_not_finite_is_refused_before_any_row_is_written(new_rows: ServingFactory) -> None:
    store = new_rows(TABLES)
    with pytest.raises(InvalidArgumentError, match=r"table 'user': key 8 has a weight that is NaN or infinite \(1 of"):
        write_keyed(store, keyed(store, [5], [8]), np.array([1, 2, 3, np.nan, 5], np.float32))
    assert store.stats().rows == 0


def test_rows_of_wide_keys_are_those_of_their_buckets(new_rows: ServingFactory) -> None:
    store = new_rows(WIDE)
    keys, splits = np.array([WIDE_KEY, WIDE_KEY, 9], np.int64), np.array([0, 3])
    named = buckets_of_keys(store.schema, keys, splits, given=np.array([4, 900, UNTOLD]))
    store.overwrite(named, np.array([1, 2, 3], np.float32))
    again = buckets_of_keys(store.schema, keys[::-1].copy(), splits, given=np.array([UNTOLD, 900, 5]))
    assert values_of(store, named) == ([1.0, 2.0, 3.0], 3)
    assert values_of(store, again) == ([3.0, 2.0, 0.0], 2)


def test_the_keys_of_some_buckets_are_listed(new_rows: ServingFactory) -> None:
    store = new_rows(TABLES)
    some = keyed(store, list(range(40)), list(range(20)))
    store.overwrite(some, np.ones(140, np.float32))
    for buckets in (range(512), range(512, 1024)):
        found = keys_in(store, shared_buckets(buckets, range(1024)))
        own = [
            (some.buckets[part] >= buckets.start) & (some.buckets[part] < buckets.stop)
            for part in (slice(40), slice(40, 60))
        ]
        expected = [list(np.arange(size)[mask]) for size, mask in zip((40, 20), own, strict=True)]
        listed = [
            sorted(found.keys[begin:end].tolist()) for begin, end in zip(found.splits, found.splits[1:], strict=False)
        ]
        assert listed == expected
