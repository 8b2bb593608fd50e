"""Vocabulary files, the tables that follow from them, and which ids go where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.nn import Slice
from monolith.tensors import Ragged
from monolith.tpu import EmbeddingTask
from monolith.tpu.embedding_task import files_of_dates
from monolith.tpu.feature_columns import Env
from monolith.tpu.vocabulary import (
    QuotientRemainder,
    TableFeature,
    Vocabulary,
    find_vocabulary_file,
    ids_in_vocabulary,
    looked_up_as,
    make_configs,
    parse_vocabulary,
    read_vocabulary,
    slots_of,
)

COUNTS = st.dictionaries(st.integers(0, 32767), st.integers(1, 1 << 40), min_size=1)


@given(COUNTS, st.lists(st.sampled_from(["", "slot\tcount", "  "]), max_size=3))
def test_parse_vocabulary_reads_the_counts_of_the_file(counts: dict[int, int], others: list[str]) -> None:
    lines = [f"{slot}\t{count}" for slot, count in counts.items()]
    assert parse_vocabulary([*others, *lines, *others], source="v") == counts


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_text_is_read_or_refused_by_line(lines: list[str]) -> None:
    try:
        found = parse_vocabulary(lines, source="v")
    except InvalidArgumentError:
        return
    assert found
    assert all(count > 0 for count in found.values())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("200", "line 2: expected slot<TAB>count, got '200'"),
        ("200 5", "line 2: expected slot<TAB>count, got '200 5'"),
        ("200\t5\t6", "line 2: expected slot<TAB>count"),
        ("200\t0", "line 2: slot 200 must have a count above 0, got '0'"),
        ("200\t-5", "line 2: slot 200 must have a count above 0, got '-5'"),
        ("200\tmany", "line 2: slot 200 must have a count above 0, got 'many'"),
        ("7\t6", "line 2: slot 7 stands there a second time"),
    ],
)
def test_a_bad_line_is_named(line: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "v.tsv"
    path.write_text(f"7\t5\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidArgumentError) as raised:
        read_vocabulary(str(path))
    assert f"vocabulary file '{path}', {text}" in str(raised.value)


def test_the_error_names_a_missing_vocabulary_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="none\\.tsv"):
        read_vocabulary(str(tmp_path / "none.tsv"))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        read_vocabulary(str(tmp_path / "v"))


def test_sizes_are_those_of_the_file_or_what_parameters_put_in_their_place() -> None:
    counts = {200: 50, 201: 60}
    assert Vocabulary(counts=counts, source="v").size(200) == 50
    assert Vocabulary(counts=counts, source="v", custom={200: 7}).size(200) == 7
    assert Vocabulary(counts=counts, source="v", custom={200: 7}).size(201) == 60
    assert Vocabulary(counts=counts, source="v", custom={200: 7}, per_slot=9, offset=2).size(200) == 11
    with pytest.raises(InvalidArgumentError, match="slot 5 is not in v, whose slots are 200, 201; add a line"):
        Vocabulary(counts=counts, source="v").size(5)
    with pytest.raises(InvalidArgumentError, match="at least one id"):
        Vocabulary(counts=counts, source="v", offset=-50).size(200)


def test_the_file_of_the_last_day_goes_first(tmp_path: Path) -> None:
    day = tmp_path / "vocab-20201210"
    day.mkdir()
    (day / "part-0.csv").write_text("1\t2\n", encoding="utf-8")
    prefix = str(tmp_path / "vocab-")
    found = find_vocabulary_file("given.tsv", folder_prefix=prefix, end_date="20201210")
    assert read_vocabulary(found) == {1: 2}
    assert find_vocabulary_file("given.tsv", folder_prefix=prefix, end_date="20201211") == "given.tsv"
    assert find_vocabulary_file("given.tsv", folder_prefix=None, end_date="20201210") == "given.tsv"
    with pytest.raises(InvalidArgumentError, match="give vocab_file_path"):
        find_vocabulary_file(None, folder_prefix=None, end_date=None)


@given(st.lists(st.integers(-(1 << 62), 1 << 62)), st.integers(1, 1 << 40))
def test_ids_are_inside_their_vocabulary(ids: list[int], size: int) -> None:
    found = ids_in_vocabulary(torch.tensor(ids, dtype=torch.int64), size).tolist()
    assert found == [max(each, 0) % size for each in ids]


@given(st.integers(1, 1 << 40), st.integers(1, 64), st.data())
def test_a_remainder_and_a_quotient_are_those_of_one_id(size: int, rate: int, data: st.DataObject) -> None:
    pair = QuotientRemainder(size, rate)
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    remainders, quotients = pair.split(torch.tensor(ids, dtype=torch.int64))
    assert (remainders < pair.remainder_size).all()
    assert (quotients < pair.quotient_size).all()
    assert (quotients * pair.remainder_size + remainders).tolist() == ids


def collected() -> Env:
    env = Env()
    user = env.slot(200, 8, Slice(1))
    user.column("fc_user").lookup(0)
    user.column("fc_friend").lookup(1)
    env.slot(201, 4).column("fc_item").lookup()
    env.slot(202, 4)  # without a column
    env.finalize()
    return env


def test_tables_are_named_by_slot_and_slice_and_shared_by_columns() -> None:
    vocabulary = Vocabulary(counts={200: 50, 201: 100_000_000}, source="v")
    features, tables = make_configs(collected(), vocabulary, threshold=100_000_000, collision_rate=4)
    assert {name: (table.vocabulary_size, table.part.dim) for name, table in tables.items()} == {
        "table_200_0": (50, 8),
        "table_200_1": (50, 1),
        "table_201_0": (100_000_000, 4),
    }
    assert {name: feature.table for name, feature in features.items()} == {
        "fc_user_0": "table_200_0",
        "fc_friend_0": "table_200_0",
        "fc_user_1": "table_200_1",
        "fc_friend_1": "table_200_1",
        "fc_item_0": "table_201_0",
    }
    assert {table.combiner for table in tables.values()} == {"sum"}
    slots = slots_of(features, tables)
    assert slots["fc_friend_0"].shares == "table_200_0"
    assert looked_up_as(features)["fc_user_0"] == "table_200_0"
    assert looked_up_as(features)["fc_friend_0"] == "fc_friend_0"


def test_vocabularies_above_a_hundred_million_become_remainders_and_quotients() -> None:
    vocabulary = Vocabulary(counts={200: 5, 201: 100_000_001}, source="v")
    features, tables = make_configs(collected(), vocabulary, threshold=100_000_000, collision_rate=4)
    assert tables["table_201_0_0"].vocabulary_size == 100_000_001 // 4 + 1
    assert tables["table_201_0_1"].vocabulary_size == 5
    assert "table_201_0" not in tables
    column = Ragged.from_lists([[100_000_000, -7], []])
    assert torch.as_tensor(features["fc_item_0_0"].ids(column).values).tolist() == [100_000_000 % 25_000_001, 0]
    assert torch.as_tensor(features["fc_item_0_1"].ids(column).values).tolist() == [100_000_000 // 25_000_001, 0]
    undivided, _ = make_configs(collected(), vocabulary, threshold=None, collision_rate=4)
    assert "fc_item_0" in undivided


def test_four_ids_share_a_remainder_by_default() -> None:
    assert QuotientRemainder(1000).remainder_size == 251
    assert EmbeddingTask.params().qr_collision_rate == 4
    feature = TableFeature(table="t", column="c", vocabulary_size=1000, half=1)
    assert torch.as_tensor(feature.ids(Ragged.from_lists([[999]])).values).tolist() == [999 // 251]


def test_slots_and_columns_are_the_same_in_every_call() -> None:
    env = collected()
    assert env.slot(201, 4).column("fc_item") is env.slots[201].columns["fc_item"]
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: env.slot(201, 5), "slot 201: has slices"),
        (lambda: env.slot(300, 5), "slot 300: logits_fn did not use it"),
        (lambda: env.slot(201, 4).column("fc_new"), "column 'fc_new': logits_fn did not use it"),
        (lambda: env.slot(201, 4).column("fc_item").lookup(1), "column 'fc_item': slot 201 has slices 0 to 0, got 1"),
    ]
    for call, text in calls:
        with pytest.raises(InvalidArgumentError, match=text):
            call()
    fresh = Env()
    with pytest.raises(InvalidArgumentError, match="at least one slice"):
        fresh.slot(1)
    fresh.slot(1, 2).column("a")
    with pytest.raises(InvalidArgumentError, match="column 'a': is of slot 1 already, got slot 2"):
        fresh.slot(2, 2).column("a")
    with pytest.raises(FailedPreconditionError, match="looked up no column"):
        Env().finalize()


def test_files_of_a_range_of_days(tmp_path: Path) -> None:
    for day in ("20201201", "20201202", "20201203"):
        (tmp_path / day / "00").mkdir(parents=True)
        (tmp_path / day / "00" / "part-0").write_bytes(b"")
    found = files_of_dates(str(tmp_path), "*/*/part*", start_date="20201202", end_date="20201203")
    assert [path.split("/")[-3] for path in found] == ["20201202", "20201203"]
    assert len(files_of_dates(str(tmp_path), "*/*/part*", start_date=None, end_date="20201202")) == 2
    with pytest.raises(NotFoundError, match="from 20210101 to 20210102"):
        files_of_dates(str(tmp_path), "*/*/part*", start_date="20210101", end_date="20210102")
    with pytest.raises(InvalidArgumentError, match="start_date must not be after end_date"):
        files_of_dates(str(tmp_path), "*/*/part*", start_date="2", end_date="1")
