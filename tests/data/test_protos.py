"""The messages have the field numbers of the original, and the modules in the tree are made from the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from monolith.data.protos import (
    example_pb2,
    instance_pb2,
    label_config_pb2,
    line_id_pb2,
    tf_example_pb2,
    transform_config_pb2,
)

MODULES = (example_pb2, instance_pb2, label_config_pb2, line_id_pb2, tf_example_pb2, transform_config_pb2)
KIND = {
    FieldDescriptor.TYPE_FIXED64: "fixed64",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
}
NUMBERS = {
    "monolith.io.proto.Feature": (
        "fid_v1_list=1 fid_v2_list=2 float_list=3 double_list=4 int64_list=5 bytes_list=6 fid_v2_lists=7 "
        "float_lists=8 double_lists=9 int64_lists=10 bytes_lists=11 int64_value=12 float_value=13 double_value=14 "
        "bytes_value=15 fid_v1_lists=16"
    ),
    "monolith.io.proto.NamedFeature": "name=1 feature=2 id=3 sorted_id=6",
    "monolith.io.proto.NamedRawFeature": "name=1 raw_feature=2 id=3",
    "monolith.io.proto.Example": (
        "named_feature=1 named_raw_feature=2 line_id=100 label=101 instance_weight=102 data_source_key=103"
    ),
    "monolith.io.proto.ExampleBatchRowMajor": "shared_feature=1 shared_raw_feature=2 example=3",
    "monolith.io.proto.NamedFeatureList": "name=1 feature=2 type=3 id=4",
    "monolith.io.proto.NamedRawFeatureList": "name=1 raw_feature=2 type=3 id=4",
    "monolith.io.proto.ExampleBatch": "named_feature_list=1 named_raw_feature_list=2 batch_size=3 data_source_key=100",
    "monolith.io.proto.FeatureData": "gid=1 fids=2 feature_columns=3 origin_cnt=4 sample_cnt=5",
    "monolith.io.proto.ChannelCache": "channel_id=1 feature_datas=2",
    "monolith.io.proto.FilterValues": "float_list=1 int64_list=2 bytes_list=3",
    "monolith.io.proto.SliceConfig": (
        "feature_name=1 start=2 end=3 feature_idx=4 slice_idx=5 pooling_type=10 max_sequence_length=11"
    ),
    "monolith.io.proto.TensorShape": "dims=1",
    "monolith.io.proto.OutConfig": "slice_configs=1 out_type=2 shape=3",
    "monolith.io.proto.FeatureConfig": "table=1 pooling_type=2 slice_dims=3 max_sequence_length=4",
    "monolith.io.proto.FeatureConfigs": "feature_configs=1 out_configs=2",
    "idl.matrix.proto.Feature": (
        "name=1 fid=2 float_value=3 int64_value=4 bytes_value=5 fid_list=6 float_list=7 int64_list=8 bytes_list=9"
    ),
    "idl.matrix.proto.LineId": (
        "uid=2 req_time=3 item_id=4 actions=6 chnid=19 pre_actions=23 sample_rate=27 special_strategies=39 "
        "device_type=41 cid=48 user_id=49 is_draw=87 rank=145 data_source_name=235"
    ),
    "parser.proto.Instance": (
        "fid=1 value=2 label=3 instance_weight=4 line_id=5 dense=6 label_tag=7 next_fid=8 feature=9 data_source_key=100"
    ),
    "parser.proto.LabelTag": "key=1 val=2",
    "parser.proto.InstanceWrapper": "instance=1 data_source=2",
    "parser.proto.Request": "req_id=1 ut=2 uid=3 req_time=4 instances=5 user=6",
    "monolith.native_training.data.config.TaskLabelConf": "pos_actions=1 neg_actions=2 sample_rate=3",
    "monolith.native_training.data.config.LabelConf": "conf=1",
    "monolith.native_training.data.config.TFRecordFeatureDescription": (
        "sparse_features=1 dense_features=2 label=3 instance_weight=4"
    ),
    "monolith.native_training.data.FilterByFidConfig": "has_fids=1 filter_fids=2 select_fids=3",
    "monolith.native_training.data.FilterByValueConfig": (
        "field_name=1 op=2 float_operand=3 int_operand=4 string_operand=5 keep_empty=6 operand_filepath=7"
    ),
    "monolith.native_training.data.AddLabelConfig": "task_label_configs=1 negative_value=2 new_sample_rate=3",
    "monolith.native_training.data.BasicTransformConfig": (
        "filter_by_fid=1 filter_by_action=2 filter_by_label=3 add_label=4 filter_by_value=5"
    ),
    "monolith.native_training.data.LogicalOrTransformConfig": "x=1 y=2",
    "monolith.native_training.data.TransformConfig": "configs=1",
    "monolith.tf.Example": "features=1",
    "monolith.tf.Feature": "bytes_list=1 float_list=2 int64_list=3",
}


def descriptor_of(name: str) -> Descriptor:
    found: list[Descriptor] = [
        message
        for module in MODULES
        for message in module.DESCRIPTOR.message_types_by_name.values()
        if message.full_name == name
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", NUMBERS)
def test_fields_have_the_upstream_numbers(name: str) -> None:
    assert " ".join(f"{field.name}={field.number}" for field in descriptor_of(name).fields) == NUMBERS[name]


def test_types_and_defaults_of_a_line_id() -> None:
    fields = {field.name: field for field in descriptor_of("idl.matrix.proto.LineId").fields}
    assert {name: KIND[field.type] for name, field in fields.items()} == {
        **dict.fromkeys(["uid", "item_id"], "fixed64"),
        **dict.fromkeys(["req_time", "chnid"], "int64"),
        **dict.fromkeys(["actions", "pre_actions", "special_strategies", "rank"], "int32"),
        **dict.fromkeys(["device_type", "cid", "user_id", "data_source_name"], "string"),
        "sample_rate": "float",
        "is_draw": "bool",
    }
    assert fields["sample_rate"].default_value == 1.0


def test_enums_have_the_upstream_numbers() -> None:
    assert dict(example_pb2.FeatureListType.items()) == {"INDIVIDUAL": 0, "SHARED": 1}
    assert dict(example_pb2.PoolingType.items()) == {"SUM": 0, "MEAN": 1, "FIRSTN": 3}
    assert dict(example_pb2.OutType.items()) == {"CONCAT": 0, "STACK": 1, "ADDN": 2, "NONE": 3}


def test_repeated_numbers_are_packed_where_upstream_packs_them() -> None:
    line_id = line_id_pb2.LineId(actions=[1, 2], special_strategies=[1, 2])
    assert line_id.SerializeToString().hex() == "32020102" + "b80201" + "b80202"
    assert (
        instance_pb2.Instance(fid=[1], label=[0.0]).SerializeToString().hex() == "0a080100000000000000" + "1a0400000000"
    )


@pytest.mark.slow
def test_the_modules_in_the_tree_are_made_from_the_proto_files(project_root: Path) -> None:
    command = [sys.executable, str(project_root / "scripts" / "update-protos"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
