"""Layouts of any kind against the plain reference, and bytes of any kind."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.device_store import DEVICE, DeviceStore
from monolith.data.protos.example_pb2 import Example, ExampleBatch, FeatureConfigs, FeatureListType, OutType
from monolith.errors import InvalidArgumentError, ResourceExhaustedError
from monolith.serving.layout import Layout
from monolith.tensors import Ragged
from serving.layout import layout_reference as reference
from serving.layout.layout_cases import assign, feature, store_of

IDS = [0, 1, 2, 3, -1, -2, 2**63 - 1, -(2**63), 2**48, 2**48 - 1, -(2**48), 1 << 54]
"""Small ones and the ends of what an int64 can be."""
FLOATS = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 1e38, 1e-45]),
)
DIMS = {"t": 3, "u": 5}


@st.composite
def features_of_layouts(draw: st.DrawFn) -> list[Any]:
    features = []
    for number in range(draw(st.integers(1, 5))):
        table = draw(st.sampled_from(sorted(DIMS)))
        pooling = draw(st.sampled_from(["sum", "mean", "firstn", "sqrtn"]))
        features.append(
            feature(
                f"f{number}",
                table,
                (DIMS[table],),
                pooling=pooling,
                max_sequence_length=draw(st.integers(1, 3)) if pooling == "firstn" else 0,
                padding_id=draw(st.sampled_from([None, -1, 0, -(2**63)])),
                column=draw(st.sampled_from([None, "f0", "x"])),
            )
        )
    return features


@st.composite
def out_configs(draw: st.DrawFn, features: list[Any]) -> FeatureConfigs:
    """Outputs that can be made of these features."""
    configs = FeatureConfigs()
    for number in range(draw(st.integers(1, 3))):
        out = configs.out_configs[f"o{number}"]
        first = draw(st.sampled_from(features))
        alike = [each for each in features if each.shape[:-1] == first.shape[:-1]]
        kinds = [OutType.CONCAT, OutType.STACK, OutType.NONE] + ([OutType.ADDN] if len(first.shape) == 1 else [])
        out.out_type = draw(st.sampled_from(kinds))
        same_dim = draw(st.integers(1, 3)) if out.out_type in {OutType.STACK, OutType.ADDN} else None
        for part in draw(st.lists(st.sampled_from(alike), min_size=1, max_size=4)):
            dim = same_dim or draw(st.integers(1, part.dim))
            start = draw(st.integers(0, part.dim - dim))
            out.slice_configs.add(feature_name=part.name, start=start, end=start + dim)
    return configs


@st.composite
def requests(draw: st.DrawFn, columns: list[str]) -> ExampleBatch:
    batch = ExampleBatch(batch_size=draw(st.integers(0, 5)))
    for name in columns:
        if draw(st.integers(0, 5)) == 0:
            continue
        is_shared = draw(st.booleans())
        column = batch.named_feature_list.add(
            name=name, type=FeatureListType.SHARED if is_shared else FeatureListType.INDIVIDUAL
        )
        kind = draw(st.sampled_from(["fid_v1_list", "fid_v2_list", "int64_list"]))
        for _ in range(1 if is_shared else batch.batch_size):
            entry = column.feature.add()
            ids = draw(st.lists(st.sampled_from(IDS), max_size=5))
            getattr(entry, kind).value.extend(each if kind == "int64_list" else each % (1 << 64) for each in ids)
    return batch


@st.composite
def rows_of_tables(draw: st.DrawFn) -> dict[str, reference.Rows]:
    known = draw(st.sets(st.sampled_from([*IDS, *(reference.v2_of(each % (1 << 64)) for each in IDS)])))
    return {
        table: {
            each: np.array(draw(st.lists(FLOATS, min_size=dim, max_size=dim)), np.float32) for each in sorted(known)
        }
        for table, dim in DIMS.items()
    }


def same_bits(value: Any, expected: np.ndarray, place: str = "core") -> None:
    """Equal but for what is in a NaN; on a device sums may be off by a rounding."""
    got = value.numpy()
    assert got.shape == expected.shape
    if place != "core":
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-37)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(got[numbers].view(np.int32), expected[numbers].view(np.int32))


def filled(rows: dict[str, reference.Rows], place: str = "core") -> Any:
    store = store_of(DIMS)
    for table, known in rows.items():
        if known:
            assign(store, table, list(known), np.stack(list(known.values())))
    return store if place == "core" else DeviceStore({}, rows=store)


@pytest.mark.parametrize("place", ["core", *DEVICE])
@settings(max_examples=50 if DEVICE else 150, deadline=None)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_layout_of_any_batch_is_that_of_the_reference(place: str, data: st.DataObject) -> None:
    features = data.draw(features_of_layouts())
    configs = data.draw(st.none() | out_configs(features))
    columns = sorted({each.source for each in features})
    batch, rows = data.draw(requests(columns)), data.draw(rows_of_tables())
    layout = Layout(features, {"rows": filled(rows, place)}, outputs=configs)
    asked = reference.asked_by_batch(batch, columns)
    expected = reference.laid_out(features, configs, asked, rows)
    laid_out = layout.from_bytes(batch.SerializeToString(), "example_batch")
    assert laid_out.num_examples == batch.batch_size
    in_core = Layout(features, {"rows": filled(rows)}, outputs=configs).from_bytes(
        batch.SerializeToString(), "example_batch"
    )
    assert laid_out.num_found <= laid_out.num_ids
    assert (laid_out.num_found, laid_out.num_ids) == (in_core.num_found, in_core.num_ids)
    for name, array in expected.items():
        same_bits(laid_out.inputs[name], array, place)
    if batch.batch_size:
        given = {
            name: Ragged.from_lists(each.lists[:1] if each.is_shared else each.lists) for name, each in asked.items()
        }
        given = {name: each if each.num_rows else Ragged.from_lists([[]]) for name, each in given.items()}
        by_column = layout.from_columns(given)
        if by_column.num_examples == batch.batch_size:
            for name, array in expected.items():
                same_bits(by_column.inputs[name], array, place)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_of_examples_are_laid_out_one_by_one(data: st.DataObject) -> None:
    features = data.draw(features_of_layouts())
    columns = sorted({each.source for each in features})
    examples = []
    for _ in range(data.draw(st.integers(0, 4))):
        example = Example()
        for name in data.draw(st.permutations(columns)):
            if data.draw(st.booleans()):
                ids = data.draw(st.lists(st.sampled_from(IDS), max_size=3))
                example.named_feature.add(name=name).feature.fid_v2_list.value.extend(each % (1 << 64) for each in ids)
        examples.append(example)
    rows = {table: {each: np.full(dim, each % 7, np.float32) for each in IDS[:8]} for table, dim in DIMS.items()}
    laid_out = Layout(features, {"rows": filled(rows)}).from_bytes(
        [each.SerializeToString() for each in examples], "examples"
    )
    expected = reference.laid_out(features, None, reference.asked_by_examples(examples, columns), rows)
    for name, array in expected.items():
        same_bits(laid_out.inputs[name], array)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_read_and_never_worse(data: st.DataObject) -> None:
    features = [feature("f0", "t", (3,)), feature("f1", "u", (5,), pooling="firstn", max_sequence_length=2)]
    batch = data.draw(requests(["f0", "f1"]))
    whole = bytearray(batch.SerializeToString())
    del whole[data.draw(st.integers(0, len(whole))) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if whole:
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    layout = Layout(features, {"rows": store_of(DIMS)}, max_output_bytes=1 << 20)
    for form in ("example_batch", "examples", "instances"):
        with contextlib.suppress(InvalidArgumentError, ResourceExhaustedError):
            laid_out = layout.from_bytes(bytes(whole), form)
            assert all(each.shape[0] == laid_out.num_examples for each in laid_out.inputs.values())


def test_a_length_that_lies_is_refused() -> None:
    layout = Layout([feature("f0", "t", (3,))], {"rows": store_of(DIMS)})
    for length in (1 << 31, (1 << 63) - 1):
        varint = bytearray()
        rest = length
        while rest:
            varint.append(rest & 0x7F | (0x80 if rest > 0x7F else 0))
            rest >>= 7
        with pytest.raises(InvalidArgumentError, match="record 0: not an ExampleBatch"):
            layout.from_bytes(b"\x0a" + bytes(varint) + struct.pack("<Q", 7), "example_batch")
