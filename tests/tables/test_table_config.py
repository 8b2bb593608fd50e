"""A table config says what is wrong with it when it is built."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from monolith.errors import InvalidArgumentError
from monolith.tables import HashTable, LocalStore, Segment, TableConfig, TableGroup
from monolith.tables.filters import ProbabilisticFilter, SlidingHashFilter
from monolith.tables.initializers import RandomUniform
from monolith.tables.row_optimizers import Adagrad, BatchSoftmax, Sgd


def wrong(value: object) -> Any:
    """Past the type checker, to see what the program says."""
    return value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segments": []}, r"table 'user': segments must not be empty"),
        ({"segments": [Segment(0)]}, r"table 'user': dim must be > 0, got 0"),
        ({"segments": [Segment(4), Segment(-1)]}, r"table 'user': dim must be > 0, got -1"),
        ({"segments": [Segment(1 << 20)]}, r"table 'user': dim must be <= 65536, got 1048576"),
        (
            {"segments": [Segment(2, optimizer=BatchSoftmax())]},
            r"table 'user': BatchSoftmax needs a segment of dim 1, got 2",
        ),
        ({"expire_days": -1}, r"table 'user': expire_days must be days in \[0, \d+\], got -1"),
        ({"slot_expire_days": {3: -2}}, r"table 'user': slot_expire_days of slot 3 must be days in .* got -2"),
        ({"slot_expire_days": {32768: 1}}, r"table 'user': slot_expire_days: slot must be in \[0, 32768\), got 32768"),
        ({"slot_min_counts": {-1: 1}}, r"table 'user': slot_min_counts: slot must be in \[0, 32768\), got -1"),
        ({"min_count": -1}, r"table 'user': min_count must be >= 0, got -1"),
        ({"min_count": 16}, r"table 'user': min_count must be <= 15 for SlidingHashFilter, .* got 16"),
        ({"slot_min_counts": {5: 99}}, r"table 'user': slot_min_counts of slot 5 must be <= 15 .* got 99"),
        ({"nonfinite": "ignore"}, r"table 'user': nonfinite must be 'raise', 'skip' or 'apply', got 'ignore'"),
        ({"eviction": "fifo"}, r"table 'user': eviction must be 'lru' or 'lfu', got 'fifo'"),
        ({"max_rows": 0}, r"table 'user': max_rows must be > 0 or None, got 0"),
        ({"max_bytes": -5}, r"table 'user': max_bytes must be > 0 or None, got -5"),
        ({"max_rows": 5, "max_bytes": 5}, r"table 'user': give max_rows or max_bytes, not both"),
        ({"skip_zero": True}, r"Only EntryConfig_EntryType_SERVING supports skip_zero_embedding!"),
        ({"seed": 2**64}, r"table 'user': seed must fit 64 bits"),
        ({"initial_capacity": -1}, r"table 'user': initial_capacity must be >= 0, got -1"),
        ({"evict_every_seconds": -1.0}, r"table 'user': evict_every_seconds must be in \[0, 2\^32\) or None, got -1.0"),
        ({"name": "a;b"}, r"table 'a;b': name must be non-empty, without"),
    ],
)
def test_a_wrong_value_is_refused_with_the_table_and_the_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TableConfig(**{"segments": [Segment(2)], "name": "user", **options})


@pytest.mark.parametrize("days", [0, 1 << 20])
def test_the_shortest_and_the_longest_expiry_are_accepted(days: int) -> None:
    table = TableConfig([Segment(2)], expire_days=days, slot_expire_days={3: days})
    assert (table.expire_days, table.slot_expire_days) == (days, {3: days})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segments": [4]}, r"table 'user': segments must be Segment\(\.\.\.\), got 4 at 0"),
        (
            {"segments": [Segment(2, optimizer=wrong("sgd"))]},
            r"table 'user': optimizer must be one of monolith's optimizers",
        ),
        (
            {"segments": [Segment(2, initializer=wrong(Sgd()))]},
            r"table 'user': initializer must be one of monolith's",
        ),
        (
            {"segments": [Segment(2, compressor=wrong(None))]},
            r"table 'user': compressor must be one of monolith's",
        ),
        ({"admission": "sliding"}, r"table 'user': admission must be one of monolith's filters or None"),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        TableConfig(**{"segments": [Segment(2)], "name": "user", **options})


@pytest.mark.parametrize(("wrong", "right"), [("segmets", "segments"), ("expire_day", "expire_days")])
def test_an_unknown_option_is_refused_with_the_closest_known_one(wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"did you mean '{right}'"):
        TableConfig(**{"segments": [Segment(2)], wrong: 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'dim'"):
        Segment(dims=2)  # type: ignore[call-arg]


def test_a_config_cannot_be_changed() -> None:
    config = TableConfig([Segment(2)])
    with pytest.raises(FrozenInstanceError):
        config.name = "other"  # type: ignore[misc]
    assert isinstance(config.segments, tuple)


def test_a_config_survives_the_way_through_a_dictionary() -> None:
    config = TableConfig(
        [Segment(2, initializer=RandomUniform(-1.0, 1.0), optimizer=Adagrad(learning_rate=0.5)), Segment(1)],
        name="user",
        slot_expire_days={3: 7},
        slot_min_counts={4: 2},
        admission=SlidingHashFilter(capacity=1000),
    )
    assert TableConfig.from_dict(config.to_dict()) == config


def test_thresholds_of_filters_that_do_not_count_may_be_large() -> None:
    assert TableConfig([Segment(1)], min_count=1000, admission=ProbabilisticFilter()).min_count == 1000


def test_dim_is_the_sum_of_the_segments() -> None:
    assert TableConfig([Segment(2), Segment(3)]).dim == 5


def test_learning_rates_come_from_the_segments_optimizers() -> None:
    config = TableConfig([Segment(1, optimizer=Sgd(learning_rate=0.5)), Segment(1, optimizer=Sgd(warmup_steps=10))])
    assert config.learning_rates_at(5) == [0.5, 0.005]


def test_a_filter_is_made_only_if_some_threshold_is_set() -> None:
    assert not TableConfig([Segment(1)]).filters_ids
    assert not TableConfig([Segment(1)], slot_min_counts={4: 0}).filters_ids
    assert TableConfig([Segment(1)], slot_min_counts={4: 1}).filters_ids
    assert not TableConfig([Segment(1)], min_count=3, admission=None).filters_ids


def test_tables_of_a_group_share_their_filter() -> None:
    configs = {
        "a": TableConfig([Segment(1)], min_count=1, admission=SlidingHashFilter(capacity=10_000)),
        "b": TableConfig([Segment(1)], min_count=1, admission=ProbabilisticFilter()),
    }
    with pytest.raises(InvalidArgumentError, match="tables 'a' and 'b': tables of a group share one admission filter"):
        TableGroup(configs)


def test_a_group_without_tables_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one table"):
        TableGroup({})
    with pytest.raises(InvalidArgumentError, match="at least one table"):
        LocalStore({})


def test_max_bytes_is_a_number_of_rows() -> None:
    table = HashTable(TableConfig([Segment(16)], max_bytes=1 << 16))
    rows_that_fit = (1 << 16) // (16 + 64)
    ids = list(range(4 * rows_that_fit))
    table.assign(ids, [[1.0] * 16] * len(ids), time=0)
    assert 0 < len(table) <= rows_that_fit
