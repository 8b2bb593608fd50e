"""The samples and layout that serving is tested with are what their metadata says."""

from __future__ import annotations

import pytest

from monolith.data import Ids, Parser
from monolith.data.protos.example_pb2 import FeatureListType, OutType, PoolingType
from monolith.ids import slot_v1, slot_v2
from monolith.tensors import Ragged
from monolith.testing.serving_examples import FEATURES, TABLES, generate_example_batch, generate_feature_configs

USERS = ["f_user_id", "f_user_ctx_network", "f_user_test10_array"]
POOLED = [*USERS, "f_goods_id", "f_page"]


def test_a_shared_list_holds_one_entry_and_the_others_one_for_each_of_ten_rows() -> None:
    batch = generate_example_batch()
    assert batch.batch_size == 10
    entries = {column.name: (column.type, len(column.feature)) for column in batch.named_feature_list}
    assert entries == {
        **dict.fromkeys([*USERS, "f_user_id-f_page"], (FeatureListType.SHARED, 1)),
        **dict.fromkeys(["f_goods_id", "f_page"], (FeatureListType.INDIVIDUAL, 10)),
    }


def test_ids_are_of_the_layout_slot_and_number_of_their_feature() -> None:
    for column in generate_example_batch(seed=3).named_feature_list:
        meta = FEATURES[column.name]
        assert column.id == meta.slot
        for feature in column.feature:
            assert feature.WhichOneof("type") == f"fid_v{meta.id_layout}_list"
            ids = list(getattr(feature, f"fid_v{meta.id_layout}_list").value)
            assert len(ids) == meta.max_sequence_length
            assert {(slot_v1 if meta.id_layout == 1 else slot_v2)(number) for number in ids} == {meta.slot}


def test_a_seed_decides_the_ids() -> None:
    assert generate_example_batch(seed=1) == generate_example_batch(seed=1) != generate_example_batch(seed=2)


def test_the_batch_parses_to_rows_of_its_slots() -> None:
    parsed = Parser("example_batch", [Ids(name) for name in FEATURES]).parse(
        [generate_example_batch().SerializeToString()]
    )
    assert parsed.num_rows == 10
    for name, meta in FEATURES.items():
        column = parsed[name]
        assert isinstance(column, Ragged)
        assert column.lengths().tolist() == [meta.max_sequence_length] * 10
        assert set(slot_v2(column.flat_values).tolist()) == {meta.slot}
    shared = parsed["f_user_id"]
    assert isinstance(shared, Ragged)
    assert len(set(shared.flat_values.tolist())) == 1


@pytest.mark.parametrize(
    ("name", "out_type", "features", "bounds", "shapes"),
    [
        ("bias", OutType.CONCAT, POOLED, (0, 1), [[10, 5]]),
        ("vec", OutType.CONCAT, POOLED, (1, 5), [[10, 20]]),
        ("uffm", OutType.NONE, USERS, (5, 9), [[10, 4]] * 3),
        ("iffm", OutType.NONE, ["f_goods_id", "f_page"], (5, 9), [[10, 4]] * 2),
        ("seq", OutType.NONE, ["f_user_id-f_page"], (0, 8), [[10, 10, 8]]),
        ("user_only", OutType.STACK, USERS, (9, 17), [[10, 3, 8]]),
    ],
)
def test_layouts_take_their_slice_of_their_features(
    name: str, out_type: OutType, features: list[str], bounds: tuple[int, int], shapes: list[list[int]]
) -> None:
    out = generate_feature_configs().out_configs[name]
    assert out.out_type == out_type
    assert [each.feature_name for each in out.slice_configs] == features
    assert {(each.start, each.end) for each in out.slice_configs} == {bounds}
    assert [list(shape.dims) for shape in out.shape] == shapes


def test_feature_configs_carry_table_dims_pooling_and_length() -> None:
    configs = generate_feature_configs().feature_configs
    dims = {table.name: list(table.slice_dims) for table in TABLES}
    assert {name: list(config.slice_dims) for name, config in configs.items()} == {
        name: dims[meta.table.name] for name, meta in FEATURES.items()
    }
    assert configs["f_user_test10_array"].pooling_type == PoolingType.MEAN
    assert configs["f_user_id"].pooling_type == PoolingType.SUM
    sequence = configs["f_user_id-f_page"]
    assert (sequence.table, sequence.pooling_type, sequence.max_sequence_length) == ("table3", PoolingType.FIRSTN, 10)
    assert configs["f_user_test10_array"].max_sequence_length == 0
