"""Instances: features that the other formats have in another form."""

from __future__ import annotations

import pytest
from torch import Tensor

from monolith.data import Batch, DenseColumn, Ids, NestedIds, Parser
from monolith.data.conversions import example_of_instance
from monolith.data.protos.example_pb2 import Example
from monolith.data.protos.instance_pb2 import Instance
from monolith.errors import DataLossError
from monolith.tensors import Ragged


def rows_of(batch: Batch, name: str) -> object:
    values = batch[name]
    return (
        values.tolist() if isinstance(values, Tensor) else values.to_lists() if isinstance(values, Ragged) else values
    )


def test_sequences_of_an_instance_stand_in_one_row() -> None:
    instance = Instance()
    lists = instance.feature.add(name="clicks").fid_list
    for ids in ([7, 8], [], [9]):
        lists.add().value.extend(ids)
    record = instance.SerializeToString()
    assert rows_of(Parser("instance", [Ids("clicks")]).parse([record, b""]), "clicks") == [[7, 8, 9], []]
    assert rows_of(Parser("instance", [NestedIds("clicks")]).parse([record]), "clicks") == [[[7, 8], [], [9]]]
    example = Example()
    example.named_feature.add(name="clicks").feature.fid_v2_lists.list.add().value.append(7)
    with pytest.raises(DataLossError, match="'clicks' must hold fid_v1_list or fid_v2_list, got fid_v2_lists"):
        Parser("example", [Ids("clicks")]).parse([example.SerializeToString()])


def test_vectors_of_an_instance_are_filled_up_or_cut_as_those_of_an_example() -> None:
    instance = Instance()
    instance.feature.add(name="short", float_value=[1.0])
    instance.feature.add(name="long", float_value=[1.0, 2.0, 3.0])
    columns = [DenseColumn("short", width=2), DenseColumn("long", width=2)]
    batch = Parser("instance", columns).parse([instance.SerializeToString()])
    assert (rows_of(batch, "short"), rows_of(batch, "long")) == ([[1.0, 0.0]], [[1.0, 2.0]])
    assert rows_of(Parser("example", columns).parse([example_of_instance(instance).SerializeToString()]), "short") == [
        [1.0, 0.0]
    ]
