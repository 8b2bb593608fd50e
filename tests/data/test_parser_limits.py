"""What a record may ask for: few bytes never become gigabytes."""

from __future__ import annotations

import pytest

from monolith.data import BadRecords, Ids, Parser
from monolith.data.protos.example_pb2 import ExampleBatch, FeatureListType
from monolith.errors import DataLossError, ResourceExhaustedError
from monolith.tensors import Ragged


@pytest.mark.parametrize("batch_size", [-1, (1 << 20) + 1, (1 << 31) - 1])
def test_a_hostile_batch_size_is_refused(batch_size: int) -> None:
    with pytest.raises(DataLossError, match="batch_size"):
        Parser("example_batch", [Ids("user")]).parse([ExampleBatch(batch_size=batch_size).SerializeToString()])


def shared_batch(ids: int, rows: int) -> bytes:
    batch = ExampleBatch(batch_size=rows)
    column = batch.named_feature_list.add(name="user", type=FeatureListType.SHARED)
    column.feature.add().fid_v2_list.value.extend(range(ids))
    return batch.SerializeToString()


def test_a_record_of_two_kilobytes_that_would_become_gigabytes_is_a_bad_one() -> None:
    hostile = shared_batch(250, 1 << 20)
    assert len(hostile) < 2100
    with pytest.raises(DataLossError, match=r"record 1: its 1048576 rows .* 134217728 bytes .* raise max_parsed_bytes"):
        Parser("example_batch", [Ids("user")]).parse([shared_batch(2, 3), hostile])
    bad = BadRecords(limit=1)
    batch = Parser("example_batch", [Ids("user")], bad=bad).parse([shared_batch(2, 3), hostile])
    user = batch["user"]
    assert isinstance(user, Ragged)
    assert (user.to_lists(), bad.count) == ([[0, 1]] * 3, 1)


def test_what_a_record_may_become_can_be_set() -> None:
    record = shared_batch(2, 10)  # a cell of 16 bytes, a split and two ids of 8 in each of ten rows
    parser = Parser("example_batch", [Ids("user")], max_parsed_bytes=400)
    assert parser.parse([record]).num_rows == 10
    with pytest.raises(DataLossError, match="more than 399 bytes"):
        Parser("example_batch", [Ids("user")], max_parsed_bytes=399).parse([record])
    with pytest.raises(ValueError, match="max_parsed_bytes must be >= 1, got 0"):
        Parser("example_batch", [Ids("user")], max_parsed_bytes=0)


def test_a_batch_that_swells_beyond_memory_is_refused() -> None:
    parser = Parser("example_batch", [Ids("user")], max_parsed_bytes=1 << 40)
    with pytest.raises(ResourceExhaustedError, match="give fewer records"):
        parser.parse([shared_batch(1000, 1 << 20)])
