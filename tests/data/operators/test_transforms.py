"""Transform configs give the operators they describe; counts say what passed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from monolith.data import INVALID_LABEL, Batch
from monolith.data.operators import AddLabel, Counted, InShare, LogicalOr, TaskLabel, Value, operators_of
from monolith.data.protos.example_pb2 import FilterValues
from monolith.data.protos.transform_config_pb2 import BasicTransformConfig, TransformConfig
from monolith.tensors import Ragged
from monolith.testing import FakeClock


def batch() -> Batch:
    return Batch(
        {
            "user": Ragged.from_lists([[1], [2], [3], [4]]),
            "actions": Ragged.from_lists([[10], [11], [], [12]]),
            "label": torch.tensor([[1.0], [0.0], [1.0], [1.0]]),
            "req_time": torch.tensor([5, 6, 7, 8]),
        },
        num_rows=4,
    )


def times(made: Batch | None) -> list[int]:
    return [] if made is None else made["req_time"].tolist()  # type: ignore[union-attr]


def test_a_chain_of_transforms_runs_in_order() -> None:
    transforms = TransformConfig()
    transforms.configs.add().basic_config.filter_by_fid.filter_fids.append(4)
    transforms.configs.add().basic_config.add_label.task_label_configs.add(pos_actions=[11], neg_actions=[10])
    transforms.configs.add().basic_config.filter_by_label.thresholds.extend([0.5, 0.5])
    made = operators_of(transforms, id_columns=["user"])(batch())
    assert times(made) == [5, 6, 7]
    assert made is not None
    assert made["label"].tolist() == [[1.0, 0.0], [INVALID_LABEL, 1.0], [1.0, INVALID_LABEL]]  # type: ignore[union-attr]


def test_actions_values_and_their_or(tmp_path: Path) -> None:
    operand = tmp_path / "times"
    operand.write_bytes(FilterValues(int64_list={"value": [7, 8]}).SerializeToString())
    transforms = TransformConfig()
    either = transforms.configs.add().logical_or_config
    either.x.filter_by_action.has_actions.append(10)
    either.y.filter_by_value.CopyFrom(
        BasicTransformConfig(
            filter_by_value={"field_name": "req_time", "op": "in", "operand_filepath": str(operand)}
        ).filter_by_value
    )
    assert times(operators_of(transforms, id_columns=["user"])(batch())) == [5, 7, 8]
    transforms.configs.add().basic_config.filter_by_value.CopyFrom(
        BasicTransformConfig(filter_by_value={"field_name": "req_time", "op": "lt", "int_operand": [8]}).filter_by_value
    )
    assert times(operators_of(transforms, id_columns=["user"])(batch())) == [5, 7]


def test_an_editing_side_edits_and_keeps_everything() -> None:
    either = LogicalOr(Value("req_time", op="lt", operand=6), AddLabel((TaskLabel((10,)),)))
    made = either(batch())
    assert made is not None
    assert made.num_rows == 4
    assert made["label"].shape == (4, 2)  # type: ignore[union-attr]
    with pytest.raises(TypeError, match="operands must be conditions or AddLabel"):
        LogicalOr(Value("a", op="lt", operand=6), either)


def test_incomplete_messages_are_refused() -> None:
    transforms = TransformConfig()
    transforms.configs.add()
    with pytest.raises(ValueError, match=r"configs\[0\] has no kind"):
        operators_of(transforms, id_columns=["user"])
    transforms.configs[0].basic_config.SetInParent()
    with pytest.raises(ValueError, match="BasicTransformConfig: no kind is set"):
        operators_of(transforms, id_columns=["user"])
    value = transforms.configs[0].basic_config.filter_by_value
    value.field_name, value.op = "uid", "eq"
    with pytest.raises(ValueError, match="'uid': exactly one kind of operand"):
        operators_of(transforms, id_columns=["user"])


def test_rows_in_and_out_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    counted = Counted(Value("req_time", op="lt", operand=7), name="young", clock=clock)
    assert counted.retention_ratio == 0
    with caplog.at_level(logging.INFO):
        counted(batch())
        clock.advance(299.5)
        counted(batch())
        assert caplog.messages == []
        clock.advance(0.5)  # five minutes
        counted(batch())
        clock.advance(299.5)
        counted(batch())
        assert caplog.messages == ["young: 12 rows in, 6 out, 0.5000 kept"]
        clock.advance(0.5)
        counted(batch())
    assert caplog.messages[1:] == ["young: 20 rows in, 10 out, 0.5000 kept"]
    assert (counted.rows_in, counted.rows_out) == (20, 10)
    nothing = Counted(InShare(end=0.0, keys=("req_time",)))
    assert nothing(batch()) is None
    assert (nothing.rows_in, nothing.rows_out) == (4, 0)
