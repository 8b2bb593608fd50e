"""Schemas are compared by digest, and differences are told in words."""

from __future__ import annotations

import pytest

from monolith.errors import DataLossError, FailedPreconditionError
from monolith.tables import HashTable, Schema, Segment, SegmentSchema, TableConfig, TableGroup, TableSchema
from monolith.tables.compressors import FixedR8
from monolith.tables.row_optimizers import Adagrad, Adam, Sgd


def schema_of(**tables: TableConfig) -> Schema:
    return TableGroup(tables).schema


def test_the_core_and_python_describe_a_table_alike() -> None:
    config = TableConfig([Segment(3, optimizer=Adam()), Segment(2, optimizer=Sgd(), compressor=FixedR8())], name="user")
    table = HashTable(config)
    (schema,) = table.schema.tables
    assert schema.text == table.native.core.schema(0)
    assert schema.digest == table.native.core.digest(0)
    assert schema == TableSchema(
        name="user",
        serving=False,
        segments=(
            SegmentSchema(dim=3, optimizer="adam", state_bytes=32, compressor="fp32", compressed_bytes=12),
            SegmentSchema(dim=2, optimizer="sgd", state_bytes=0, compressor="fixed_r8", compressed_bytes=2),
        ),
    )
    assert (schema.dim, schema.state_bytes) == (5, 32)


def test_a_schema_survives_the_way_through_its_text() -> None:
    schema = schema_of(a=TableConfig([Segment(1)]), b=TableConfig([Segment(2), Segment(3)], serving=True))
    again = Schema.parse(schema.text)
    assert again == schema
    assert again.digest == schema.digest
    assert schema.differences(again) == []


def test_the_size_of_rows_in_a_file_is_that_of_their_keys_times_and_payloads() -> None:
    schema = schema_of(a=TableConfig([Segment(2, optimizer=Adam())]), b=TableConfig([Segment(3, compressor=FixedR8())]))
    payloads = {state: [table.payload_bytes(state=state) for table in schema.tables] for state in (False, True)}
    assert payloads[False] == [8, 3]
    for state, (first, second) in payloads.items():
        assert schema.num_bytes({"a": 10, "b": 0}, state=state) == 10 * (12 + first)
        assert schema.num_bytes({"a": 10, "b": 7}, state=state) == 10 * (12 + first) + 7 * (12 + second)


def test_how_rows_learn_is_not_part_of_the_schema() -> None:
    slow = schema_of(a=TableConfig([Segment(2, optimizer=Adagrad(learning_rate=0.1))], expire_days=3))
    fast = schema_of(a=TableConfig([Segment(2, optimizer=Adagrad(learning_rate=0.9))], seed=4, nonfinite="skip"))
    assert slow.digest == fast.digest


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({}, "table 'item' is missing"),
        ({"item": TableConfig([Segment(2)]), "tag": TableConfig([Segment(1)])}, "table 'tag' is unknown"),
        ({"item": TableConfig([Segment(2)], serving=True)}, "table 'item': expected training rows, got serving rows"),
        ({"item": TableConfig([Segment(2), Segment(1)])}, "table 'item': expected 1 segments, got 2"),
        (
            {"item": TableConfig([Segment(2, optimizer=Adagrad())])},
            "table 'item', segment 0: expected 2,sgd,0,fp32,8, got 2,adagrad,8,fp32,8",
        ),
    ],
)
def test_differences_are_reported_table_by_table(other: dict[str, TableConfig], difference: str) -> None:
    ours = schema_of(item=TableConfig([Segment(2)]), user=TableConfig([Segment(1)]))
    theirs = schema_of(**other, user=TableConfig([Segment(1)]))
    assert ours.differences(theirs) == [difference]


@pytest.mark.parametrize(
    "text",
    [
        "monolith-table/2;serving=0;segment=1,sgd,0,fp32,4",
        "monolith-table/1;serving=2;segment=1,sgd,0,fp32,4",
        "monolith-table/1;serving=0;segment=1,sgd,0,fp32",
        "monolith-table/1;serving=0;segment=x,sgd,0,fp32,4",
        "monolith-table/1;serving=0;part=1,sgd,0,fp32,4",
        "",
    ],
)
def test_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(DataLossError, match="schema"):
        TableSchema.parse("user", text)
    with pytest.raises(DataLossError, match="schema"):
        Schema.parse(f"monolith-schema/1;slot=v2\nuser={text}\n")
    with pytest.raises(DataLossError, match="first line must be"):
        Schema.parse("something else")
    with pytest.raises(DataLossError, match="first line must be"):
        Schema.parse("")


def test_tables_must_be_in_the_order_of_their_names() -> None:
    tables = schema_of(a=TableConfig([Segment(1)]), b=TableConfig([Segment(1)])).tables
    with pytest.raises(FailedPreconditionError, match=r"sorted by name and distinct, got \['b', 'a'\]"):
        Schema(tables[::-1])
    with pytest.raises(FailedPreconditionError, match="sorted by name and distinct"):
        Schema(tables[:1] * 2)
