"""The batch and configs that serving is tested with, laid out as a plain reference does it; and what is refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from monolith.data.protos.example_pb2 import Example, ExampleBatch, FeatureConfigs, OutType, PoolingType
from monolith.data.protos.instance_pb2 import Instance
from monolith.errors import InvalidArgumentError, ResourceExhaustedError
from monolith.export.layout_spec import DenseSpec
from monolith.ids import pack_v1, pack_v2
from monolith.serving.layout import Layout, slice_name
from monolith.tables import LocalStore, compressors
from monolith.tensors import Ragged
from monolith.testing.serving_examples import TABLES, generate_example_batch, generate_feature_configs
from serving.layout import layout_reference as reference
from serving.layout.layout_cases import assign, feature, store_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def filled(dims: Mapping[str, int], ids: Mapping[str, set[int]], seed: int = 0) -> tuple[LocalStore, dict[str, Any]]:
    """A store with a random row for these ids of each table, and the same rows as dictionaries."""
    random = np.random.default_rng(seed)
    store, rows = store_of(dims), {}
    for table, dim in dims.items():
        known = sorted(ids.get(table, set()))
        values = random.standard_normal((len(known), dim)).astype(np.float32)
        if known:
            assign(store, table, known, values)
        rows[table] = dict(zip(known, values, strict=True))
    return store, rows


def check(laid_out: Any, expected: Mapping[str, NDArray[np.float32]]) -> None:
    """The same names, shapes and bits."""
    assert set(laid_out.inputs) >= set(expected)
    for name, array in expected.items():
        value = laid_out.inputs[name]
        assert value.dtype == torch.float32
        assert tuple(value.shape) == array.shape, name
        np.testing.assert_array_equal(value.numpy().view(np.int32), array.view(np.int32), err_msg=name)


def serving_layout(seed: int = 0) -> tuple[ExampleBatch, FeatureConfigs, Layout, dict[str, Any]]:
    """serving_ps_test's ten rows and configs, with rows for most of the ids."""
    batch, configs = generate_example_batch(seed=seed), generate_feature_configs()
    asked = reference.asked_by_batch(batch, list(configs.feature_configs))
    ids: dict[str, set[int]] = {table.name: set() for table in TABLES}
    for name, config in configs.feature_configs.items():
        ids[config.table].update(each for row in asked[name].lists for each in row if each % 5)
    store, rows = filled({table.name: sum(table.slice_dims) for table in TABLES}, ids)
    return batch, configs, Layout.from_configs(configs, {"rows": store}), rows


def test_the_ten_rows_of_serving_ps_test_are_laid_out_as_their_configs_specify() -> None:
    batch, configs, layout, rows = serving_layout()
    asked = reference.asked_by_batch(batch, list(configs.feature_configs))
    laid_out = layout.from_bytes(batch.SerializeToString(), "example_batch")
    check(laid_out, reference.laid_out(layout.features, configs, asked, rows))
    assert {name: tuple(value.shape) for name, value in laid_out.inputs.items()} == {
        "bias": (10, 5),
        "vec": (10, 20),
        "uffm/0": (10, 4),
        "uffm/1": (10, 4),
        "uffm/2": (10, 4),
        "iffm/0": (10, 4),
        "iffm/1": (10, 4),
        "seq/0": (10, 10, 8),
        "user_only": (10, 3, 8),
    }
    assert list(laid_out.inputs) == sorted(laid_out.inputs)
    assert laid_out.num_examples == 10
    assert laid_out.num_ids == 1 + 1 + 10 + 10 + 10 + 10  # what is shared counts once
    assert 0 < laid_out.num_found < laid_out.num_ids


def test_examples_and_columns_give_what_the_batch_of_them_gives() -> None:
    batch, configs, layout, _ = serving_layout(seed=3)
    asked = reference.asked_by_batch(batch, list(configs.feature_configs))
    whole = layout.from_bytes(batch.SerializeToString(), "example_batch")
    examples = []
    for row in range(10):
        example = Example()
        for name, (lists, _) in asked.items():
            values = [each % (1 << 64) for each in lists[row]]
            example.named_feature.add(name=name).feature.fid_v2_list.value.extend(values)
        examples.append(example.SerializeToString())
    by_row = layout.from_bytes(examples, "examples")
    by_column = layout.from_columns({name: Ragged.from_lists(lists) for name, (lists, _) in asked.items()})
    shared = layout.from_columns(
        {name: torch.tensor(lists[:1] if is_shared else lists) for name, (lists, is_shared) in asked.items()}
    )
    for other in (by_row, by_column, shared):
        check(other, {name: value.numpy() for name, value in whole.inputs.items()})
    assert shared[1:] == whole[1:]
    assert by_row.num_ids > whole.num_ids


def test_instances_give_their_flat_ids_and_their_features() -> None:
    store, rows = filled({"t": 3}, {"t": {pack_v2(7, 1), pack_v2(7, 2), pack_v2(9, 5)}})
    layout = Layout([feature("fc_slot_7", "t", (3,)), feature("fc_tags", "t", (3,))], {"rows": store})
    instance = Instance(fid=[pack_v1(7, 1), pack_v1(8, 1), pack_v1(7, 2)])
    instance.feature.add(name="fc_tags", fid=[pack_v2(9, 5), pack_v2(9, 6)])
    laid_out = layout.from_bytes([instance.SerializeToString(), Instance().SerializeToString()], "instances")
    asked = {
        "fc_slot_7": reference.Asked([[pack_v2(7, 1), pack_v2(7, 2)], []]),
        "fc_tags": reference.Asked([[pack_v2(9, 5), pack_v2(9, 6)], []]),
    }
    check(laid_out, reference.laid_out(layout.features, None, asked, rows))
    assert (laid_out.num_ids, laid_out.num_found) == (4, 3)


def sequences(out_type: OutType, lengths: tuple[int, int] = (4, 4)) -> FeatureConfigs:
    """Two sequences and a pooled feature."""
    configs = FeatureConfigs()
    for name, length in zip(("a", "b"), lengths, strict=True):
        config = configs.feature_configs[name]
        config.table, config.pooling_type, config.max_sequence_length = "t", PoolingType.FIRSTN, length
        config.slice_dims.extend((2, 3))
    configs.feature_configs["pooled"].table = "t"
    configs.feature_configs["pooled"].slice_dims.extend((2, 3))
    out = configs.out_configs["out"]
    out.out_type = out_type
    return configs


@pytest.mark.parametrize("out_type", [OutType.CONCAT, OutType.STACK, OutType.NONE])
def test_sequences_are_concatenated_place_by_place_and_stacked_one_by_one(out_type: OutType) -> None:
    configs = sequences(out_type)
    out = configs.out_configs["out"]
    for name, start, end in (("a", 0, 2), ("b", 3, 5), ("a", 1, 3)):
        out.slice_configs.add(feature_name=name, start=start, end=end)
    store, rows = filled({"t": 5}, {"t": set(range(20))})
    layout = Layout.from_configs(configs, {"rows": store})
    lists: dict[str, list[list[int]]] = {
        "a": [[1, 2, 3, 4, 5], [], [6]],
        "b": [[7], [8, 9, 10, 11], [99, 12]],
        "pooled": [[], [], []],
    }
    laid_out = layout.from_columns({name: Ragged.from_lists(each) for name, each in lists.items()})
    asked = {name: reference.Asked(each) for name, each in lists.items()}
    expected = reference.laid_out(layout.features, configs, asked, rows)
    check(laid_out, expected)
    shapes = {OutType.CONCAT: (3, 4, 6), OutType.STACK: (3, 3, 4, 2), OutType.NONE: (3, 4, 2)}
    assert next(iter(expected.values())).shape == shapes[out_type]


@pytest.mark.parametrize(
    ("out_type", "slices", "lengths", "message"),
    [
        (OutType.ADDN, [("a", 0, 2), ("b", 0, 2)], (4, 4), "ADDN adds pooled rows"),
        (OutType.CONCAT, [("a", 0, 2), ("b", 0, 2)], (4, 5), "one max_sequence_length"),
        (OutType.CONCAT, [("a", 0, 2), ("pooled", 0, 2)], (4, 4), "or none of them"),
        (OutType.STACK, [("a", 0, 2), ("b", 0, 3)], (4, 4), "have one dim"),
        (OutType.ADDN, [("pooled", 0, 2), ("pooled", 0, 3)], (4, 4), "have one dim"),
        (OutType.CONCAT, [("a", 0, 6)], (4, 4), r"rows of 5, got the slice \[0, 6\)"),
        (OutType.CONCAT, [("a", 2, 2)], (4, 4), "got the slice"),
        (OutType.CONCAT, [("a", -1, 2)], (4, 4), "got the slice"),
        (OutType.CONCAT, [("c", 0, 2)], (4, 4), "no feature 'c'"),
        (OutType.CONCAT, [], (4, 4), "no slices"),
        (OutType.CONCAT, [("a", 0, 2)], (0, 4), "max_sequence_length >= 1"),
    ],
)
def test_outputs_that_cannot_be_made_are_refused(
    out_type: OutType, slices: list[tuple[str, int, int]], lengths: tuple[int, int], message: str
) -> None:
    configs = sequences(out_type, lengths=lengths)
    for name, start, end in slices:
        configs.out_configs["out"].slice_configs.add(feature_name=name, start=start, end=end)
    with pytest.raises(InvalidArgumentError, match=message):
        Layout.from_configs(configs, {"rows": store_of({"t": 5})})


def test_declared_shapes_must_be_those_of_the_slices() -> None:
    configs = generate_feature_configs()
    configs.out_configs["vec"].shape[0].dims[1] = 21
    stores = {"rows": store_of({table.name: sum(table.slice_dims) for table in TABLES})}
    with pytest.raises(InvalidArgumentError, match=r"output 'vec': the declared shapes \[\(10, 21\)\]"):
        Layout.from_configs(configs, stores)


def test_a_table_that_no_store_or_two_stores_have_is_refused() -> None:
    configs = sequences(OutType.CONCAT)
    configs.out_configs["out"].slice_configs.add(feature_name="a", start=0, end=1)
    with pytest.raises(InvalidArgumentError, match="no store has a table 't'"):
        Layout.from_configs(configs, {"rows": store_of({"u": 5})})
    with pytest.raises(InvalidArgumentError, match="stores x, y have a table 't'"):
        Layout.from_configs(configs, {"x": store_of({"t": 5}), "y": store_of({"t": 5})})
    with pytest.raises(InvalidArgumentError, match="5 floats, rows of table 't' have 6"):
        Layout.from_configs(configs, {"rows": store_of({"t": 6})})


def test_addn_adds_slices_in_their_order() -> None:
    configs = FeatureConfigs()
    for name in ("a", "b"):
        configs.feature_configs[name].table = "t"
        configs.feature_configs[name].slice_dims.append(2)
    out = configs.out_configs["sum"]
    out.out_type = OutType.ADDN
    for name, start in (("b", 0), ("a", 0), ("b", 1)):
        out.slice_configs.add(feature_name=name, start=start, end=start + 1)
    rows = {1: np.array([1e8, 3.0], np.float32), 2: np.array([1.0, -1e8], np.float32)}
    store = store_of({"t": 2})
    assign(store, "t", [1, 2], np.stack([rows[1], rows[2]]))
    layout = Layout.from_configs(configs, {"rows": store})
    laid_out = layout.from_columns({"a": [2], "b": [1]})
    assert laid_out.inputs["sum"].tolist() == [[float(np.float32(np.float32(1e8) + np.float32(1.0)) + np.float32(3.0))]]


def test_several_features_may_read_one_column() -> None:
    store, rows = filled({"t": 2, "u": 3}, {"t": {1, 2}, "u": {1, 2}})
    layout = Layout(
        [feature("a", "t", (2,), column="ids"), feature("b", "u", (3,), column="ids", pooling="mean")], {"rows": store}
    )
    laid_out = layout.from_columns({"ids": [[1, 2], [2]]})
    asked = {"ids": reference.Asked([[1, 2], [2]])}
    check(laid_out, reference.laid_out(layout.features, None, asked, rows))
    batch = ExampleBatch(batch_size=2)
    column = batch.named_feature_list.add(name="ids")
    column.feature.add().int64_list.value.extend([1, 2])
    column.feature.add().int64_list.value.append(2)
    check(
        layout.from_bytes(batch.SerializeToString(), "example_batch"),
        reference.laid_out(layout.features, None, asked, rows),
    )


def test_padding_is_no_id_and_sequences_close_up_after_it() -> None:
    store, rows = filled({"t": 2}, {"t": {1, 2, 3}})
    layout = Layout(
        [
            feature("mean", "t", (2,), column="ids", pooling="mean", padding_id=-1),
            feature("first", "t", (2,), column="ids", pooling="firstn", max_sequence_length=2, padding_id=-1),
        ],
        {"rows": store},
    )
    lists = [[-1, 1, -1, 2, 3], [-1, -1, -1, -1, -1], [3, 3, 3, 3, 1]]
    laid_out = layout.from_columns({"ids": torch.tensor(lists)})
    check(laid_out, reference.laid_out(layout.features, None, {"ids": reference.Asked(lists)}, rows))
    assert laid_out.num_ids == 3 + 5 + 2 + 2


def lists_of(column: Any) -> list[list[float]]:
    """Of a column of numbers of differing length."""
    assert isinstance(column, Ragged)
    return column.to_lists()


def numbers_layout() -> Layout:
    """One feature and a column of each kind of numbers."""
    return Layout(
        [feature("item", "t", (2,))],
        {"rows": store_of({"t": 2})},
        dense=[
            DenseSpec(name="price", dtype="float32", width=2),
            DenseSpec(name="age", dtype="int64", width=1),
            DenseSpec(name="scores", dtype="float32", width=None),
            DenseSpec(name="steps", dtype="int64", width=None),
            DenseSpec(name="title", dtype="bytes", width=None),
        ],
    )


def test_columns_of_numbers_come_along() -> None:
    batch = ExampleBatch(batch_size=2)
    for name, values in {
        "price": [[1.0, 2.0], [3.0]],
        "scores": [[0.5], [1.5, 2.5]],
    }.items():
        column = batch.named_feature_list.add(name=name)
        for each in values:
            column.feature.add().float_list.value.extend(each)
    column = batch.named_feature_list.add(name="age", type=1)
    column.feature.add().int64_list.value.append(30)
    column = batch.named_feature_list.add(name="title")
    for title in (b"x", b"y"):
        column.feature.add().bytes_list.value.append(title)
    inputs, *_, loose = numbers_layout().from_bytes(batch.SerializeToString(), "example_batch")
    assert inputs["price"].tolist() == [[1.0, 2.0], [3.0, 0.0]]
    assert inputs["age"].tolist() == [[30], [30]]
    assert lists_of(loose["scores"]) == [[0.5], [1.5, 2.5]]
    assert lists_of(loose["steps"]) == [[], []]
    assert loose["title"] == [b"x", b"y"]
    assert inputs["item"].shape == (2, 2)


def test_columns_of_numbers_of_one_row_stand_for_all() -> None:
    inputs, *_, loose = numbers_layout().from_columns(
        {
            "item": [1, 2, 3],
            "price": np.array([[1.0, 2.0]], np.float32),
            "age": [[1], [2], [3]],
            "scores": Ragged.from_lists([[0.5, 1.0]], dtype=torch.float32),
            "steps": Ragged.from_lists([[1], [], [2]]),
            "title": [b"x"],
        }
    )
    assert inputs["price"].tolist() == [[1.0, 2.0]] * 3
    assert lists_of(loose["scores"]) == [[0.5, 1.0]] * 3
    assert loose["title"] == [b"x"] * 3
    assert inputs["age"].tolist() == [[1], [2], [3]]


def test_columns_of_numbers_of_another_width_are_refused() -> None:
    columns = {
        "item": [1],
        "age": [[1]],
        "scores": Ragged.from_lists([[0.5]], dtype=torch.float32),
        "steps": Ragged.from_lists([[1]]),
        "title": [b"x"],
    }
    with pytest.raises(InvalidArgumentError, match="input 'price': 2 numbers of each example are expected, got 3"):
        numbers_layout().from_columns({**columns, "price": np.ones((1, 3), np.float32)})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "input 'item': the request has no ids for it"),
        ({"itme": [1]}, "did you mean 'itme'"),
        ({"item": torch.tensor([1.0])}, "must be int64, got torch.float32"),
        ({"item": np.array([1], np.int32)}, "must be int64, got torch.int32"),
        ({"item": torch.zeros(1, 1, 1, dtype=torch.int64)}, r"got \[1, 1, 1\]"),
        ({"item": "7"}, "got str"),
        ({"item": [1, "x"]}, "numbers expected"),
        ({"item": [1 << 63]}, "signed numbers expected"),
        ({"item": [1 << 64]}, "numbers expected"),
        ({"item": [True]}, "ids must be integers"),
        ({"item": [[1], [2, True]]}, "ids must be integers"),
        ({"item": [1, 2], "user": [1, 2, 3]}, "'item' 2, 'user' 3"),
        ({"item": Ragged(torch.arange(3), torch.tensor([0, 2, 1, 3]), validate=False)}, "must rise from 0"),
        ({"item": Ragged(torch.arange(3), torch.tensor([0, 5]), validate=False)}, r"number of ids \(3\)"),
        ({"item": Ragged(torch.arange(3), torch.tensor([1, 3]), validate=False)}, r"number of ids \(3\)"),
        ({"item": Ragged(torch.arange(3), torch.tensor([-1, 3]), validate=False)}, "must rise from 0"),
    ],
)
def test_wrong_columns_are_refused_by_name(columns: dict[str, Any], message: str) -> None:
    layout = Layout([feature("item", "t", (2,)), feature("user", "t", (2,))], {"rows": store_of({"t": 2})})
    with pytest.raises(InvalidArgumentError, match=message):
        layout.from_columns({"user": [1]} | columns if columns else columns)


def test_bytes_that_are_no_samples_are_refused_with_their_place() -> None:
    layout = Layout([feature("item", "t", (2,))], {"rows": store_of({"t": 2})})
    with pytest.raises(InvalidArgumentError, match="record 1: not an Example"):
        layout.from_bytes([b"", b"\xff"], "examples")
    with pytest.raises(InvalidArgumentError, match="must be bytes, got str"):
        layout.from_bytes(["x"], "examples")  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="one of example_batch, examples, instances"):
        layout.from_bytes(b"", "plaintext")  # type: ignore[arg-type]
    batch = ExampleBatch(batch_size=1)
    batch.named_feature_list.add(name="item").feature.add().float_list.value.append(1.0)
    with pytest.raises(InvalidArgumentError, match=r"feature 'item' must hold .* got float_list"):
        layout.from_bytes(batch.SerializeToString(), "example_batch")


def test_ids_of_another_slot_are_refused_where_they_carry_it() -> None:
    given = {"id_layout": "v2", "number": 7}
    layout = Layout([feature("item", "t", (2,), **given)], {"rows": store_of({"t": 2})})
    assert layout.from_columns({"item": [pack_v2(7, 3)]}).num_ids == 1
    with pytest.raises(InvalidArgumentError, match=f"slot's number 7 .* got {pack_v2(8, 3)} in example 1"):
        layout.from_columns({"item": [pack_v2(7, 3), pack_v2(8, 3)]})
    raw = Layout([feature("item", "t", (2,), id_layout="raw", number=7)], {"rows": store_of({"t": 2})})
    with pytest.raises(InvalidArgumentError, match=r"in \[0, 2\^48\), got -1 in example 0"):
        raw.from_columns({"item": [-1]})


def test_a_few_bytes_cannot_ask_for_gigabytes() -> None:
    sequence = feature("item", "t", (64,), pooling="firstn", max_sequence_length=1000)
    layout = Layout([sequence], {"rows": store_of({"t": 64})})
    with pytest.raises(InvalidArgumentError, match="batch_size 2147483647"):
        layout.from_bytes(ExampleBatch(batch_size=2**31 - 1).SerializeToString(), "example_batch")
    with pytest.raises(InvalidArgumentError, match="negative batch_size"):
        layout.from_bytes(ExampleBatch(batch_size=-1).SerializeToString(), "example_batch")
    with pytest.raises(ResourceExhaustedError, match="max_output_bytes"):
        layout.from_bytes(ExampleBatch(batch_size=100_000).SerializeToString(), "example_batch")
    with pytest.raises(ResourceExhaustedError, match="max_output_bytes"):
        layout.from_columns({"item": torch.zeros(100_000, dtype=torch.int64)})
    many = [ExampleBatch(batch_size=1 << 20).SerializeToString()] * 100
    with pytest.raises(ResourceExhaustedError, match="too large to parse in one call"):
        layout.from_bytes(many, "example_batch")


def test_empty_requests_have_empty_outputs() -> None:
    _, _, layout, _ = serving_layout()
    for laid_out in (
        layout.from_bytes(b"", "example_batch"),
        layout.from_bytes([], "examples"),
        layout.from_columns(dict.fromkeys((each.name for each in layout.features), torch.zeros(0, dtype=torch.int64))),
    ):
        assert laid_out.num_examples == laid_out.num_ids == 0
        assert laid_out.inputs["seq/0"].shape == (0, 10, 8)
        assert laid_out.inputs["user_only"].shape == (0, 3, 8)


def test_the_name_of_a_slice_is_that_of_upstream() -> None:
    assert slice_name("vec", ["b", "a"]) == slice_name("vec", ["a", "b"]) == "vec_b345e1dc09f20fdefdea469f09167892"


def test_no_row_is_torn_during_concurrent_writes() -> None:
    ids = list(range(64))
    store = store_of({"t": 16}, serving=True, compressor=compressors.Fp16())
    assign(store, "t", ids, np.zeros((64, 16), np.float32))
    layout = Layout([feature("item", "t", (16,))], {"rows": store})
    stop, torn = threading.Event(), []

    def read() -> None:
        column = torch.tensor(ids)
        while not stop.is_set():
            rows = layout.from_columns({"item": column}).inputs["item"]
            if not (rows == rows[:, :1]).all():
                torn.append(rows)

    readers = [threading.Thread(target=read, name=f"reader-{number}") for number in range(2)]
    for reader in readers:
        reader.start()
    for number in range(400):
        assign(store, "t", ids, np.full((64, 16), float(number), np.float32))
    stop.set()
    for reader in readers:
        reader.join(60)
    assert not torn
