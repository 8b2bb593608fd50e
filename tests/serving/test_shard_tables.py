"""Rows of a shard by signature, in one process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from failing_once import FailingOnce
from monolith import _core
from monolith.cluster.discovery import ServiceDiscovery
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.nn import Embeddings, Slot
from monolith.nn.embeddings.id_batch import IdBatchReader
from monolith.serving.server.config import ServerConfig
from monolith.serving.server.metrics import ServingMetrics
from monolith.serving.shards import shard_service
from monolith.serving.shards.replicas import ShardNumber
from monolith.serving.shards.served_shard import serve_shard
from monolith.serving.shards.shard_service import Registration, ShardService
from monolith.serving.shards.shard_tables import ShardTables
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup, compressors

DIMS = {"item": 2, "user": 3}


def store(*, skip_zero: bool = False) -> LocalStore:
    return LocalStore(
        {name: TableConfig([Segment(dim)], serving=True, skip_zero=skip_zero) for name, dim in DIMS.items()}
    )


def filled() -> tuple[LocalStore, dict[tuple[str, int], list[float]]]:
    made = store()
    random = np.random.default_rng(7)
    known: dict[tuple[str, int], list[float]] = {}
    for name, dim in DIMS.items():
        rows = random.normal(size=(50, dim)).astype(np.float32)
        TableGroup.of_store(made)[name].assign(torch.arange(50), torch.from_numpy(rows))
        known |= {(name, key): rows[key].tolist() for key in range(50)}
    return made, known


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_lookup_gives_rows_by_table_and_zeros_for_ids_without_one() -> None:
    made, known = filled()
    found = ShardTables({"model": made}).call("lookup", {"user": ids(3, 99, 3), "item": ids(7)})

    assert found["user"].tolist() == [known["user", 3], [0.0] * 3, known["user", 3]]
    assert found["item"].tolist() == [known["item", 7]]
    assert ShardTables({"model": made}).call("lookup", {"item": ids()})["item"].shape == (0, 2)


def test_raw_lookup_gives_tables_in_the_order_of_their_names() -> None:
    made, known = filled()
    found = ShardTables({"model": made}).call("raw_lookup", {"id": ids(4, 5, 6), "id_split": ids(0, 1, 3)})
    assert found["flat_emb"].tolist() == known["item", 4] + known["user", 5] + known["user", 6]


def test_stacked_raw_lookups_use_the_split_of_each() -> None:
    made, known = filled()
    stacked = {"id": ids(4, 5, 6, 7, 8), "id_split": ids(0, 1, 2, 0, 0, 3)}
    found = ShardTables({"model": made}).call("raw_lookup", stacked)
    expected = known["item", 4] + known["user", 5] + known["user", 6] + known["user", 7] + known["user", 8]
    assert found["flat_emb"].tolist() == expected


def test_rows_are_assigned_by_table_and_raw_and_stacked() -> None:
    tables = ShardTables({"model": store()})
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    by_table = tables.call("hashtable_assign", {"item_id": ids(1, 2), "item_value": rows})
    flat = torch.arange(2 + 3 + 3, dtype=torch.float32)
    raw = tables.call("model/raw_assign", {"id": ids(3, 4, 5), "id_split": ids(0, 1, 2, 0, 0, 1), "flat_value": flat})

    assert [int(by_table["item_result"]), int(raw["result"])] == [2, 3]
    found = tables.call("lookup", {"item": ids(1, 2, 3), "user": ids(4, 5)})
    assert found["item"].tolist() == [[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]
    assert found["user"].tolist() == [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]


def test_a_zero_row_erases_an_id_where_zeros_are_not_kept() -> None:
    tables = ShardTables({"model": store(skip_zero=True)})
    tables.call("hashtable_assign", {"item_id": ids(1, 2), "item_value": torch.ones(2, 2)})
    assert tables.num_rows == 2
    tables.call("hashtable_assign", {"item_id": ids(1), "item_value": torch.zeros(1, 2)})
    assert tables.num_rows == 1
    assert tables.call("lookup", {"item": ids(1, 2)})["item"].tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_every_key_is_at_one_of_any_number_of_shards_and_refused_by_the_others() -> None:
    for count in (1, 2, 3, 7):
        shards = [ShardNumber(index, count) for index in range(count)]
        assert [bucket for shard in shards for bucket in shard.buckets] == list(range(1024))
    tables = ShardTables({"model": store()}, buckets=ShardNumber(1, 3).buckets)
    keys = np.arange(100)
    own = (_core.bucket_of(keys) >= 342) & (_core.bucket_of(keys) < 683)
    assert 0 < own.sum() < 100
    tables.call("lookup", {"item": torch.from_numpy(keys[own])})
    with pytest.raises(InvalidArgumentError, match=r"table 'item': key \d+ is of another shard: buckets 342 to 682"):
        tables.call("lookup", {"item": torch.from_numpy(keys)})
    with pytest.raises(InvalidArgumentError, match="is of another shard"):
        tables.call("raw_lookup", {"id": torch.from_numpy(keys), "id_split": ids(0, 0, 100)})


@pytest.mark.parametrize(
    ("signature", "inputs", "words"),
    [
        ("lookup", {"items": ids(1)}, "no input 'items'; the tables are item, user"),
        ("lookup", {"item": torch.ones(1)}, "item: int64 of 1 dims expected, got float32"),
        ("lookup", {"item": ids(1).reshape(1, 1)}, r"got int64 of shape \[1, 1\]"),
        ("lookup", {"item": np.array([b"1"], object)}, "got object of shape"),
        ("raw_lookup", {"id": ids(1)}, "inputs id, id_split expected, got id"),
        ("raw_lookup", {"id": ids(1), "id_split": ids(0, 1)}, "3 numbers expected for 2 tables, got 2"),
        ("raw_lookup", {"id": ids(1), "id_split": ids(0, 2, 1)}, "numbers from 0 upwards"),
        ("raw_lookup", {"id": ids(1), "id_split": ids(1, 1, 1)}, "numbers from 0 upwards"),
        ("raw_lookup", {"id": ids(1), "id_split": ids(0, 0, 1 << 62)}, "numbers from 0 upwards"),
        ("raw_lookup", {"id": ids(1, 2), "id_split": ids(0, 0, 1)}, "1 ids expected by id_split, got 2"),
        ("raw_lookup", {"id": ids(1), "id_split": ids(0, 0, 1, 0, 0, 1)}, "2 ids expected by id_split, got 1"),
        ("hashtable_assign", {"item_id": ids(1)}, r"item_value: \[1, 2\] expected, got \[0, 2\]"),
        ("hashtable_assign", {"item_id": ids(1), "item_value": torch.ones(1, 3)}, r"\[1, 2\] expected, got \[1, 3\]"),
        ("hashtable_assign", {"item_value": torch.ones(1, 2)}, r"\[0, 2\] expected, got \[1, 2\]"),
        (
            "model/raw_assign",
            {"id": ids(1), "id_split": ids(0, 1, 1), "flat_value": torch.ones(3)},
            "2 floats expected",
        ),
        (
            "model/raw_assign",
            {"id": ids(1), "id_split": ids(0, 1, 1), "flat_value": torch.ones(1)},
            "2 floats expected",
        ),
        ("lookup", {"item": ids(1), "item_bucket": torch.tensor([5], dtype=torch.int32)}, "is not of the bucket"),
        ("lookup", {"item": ids(1), "item_bucket": torch.tensor([5, 6], dtype=torch.int32)}, "1 buckets expected"),
    ],
)
def test_wrong_inputs_are_refused_by_name(signature: str, inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        ShardTables({"model": store()}).call(signature, inputs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_cannot_be_served_are_refused_before_any_is_written(bad: float) -> None:
    tables = ShardTables({"model": store()})
    inputs = {"item_id": ids(1, 2), "item_value": torch.tensor([[1.0, 1.0], [1.0, bad]])}
    with pytest.raises(InvalidArgumentError, match=r"table 'item': key 2 has a weight that is NaN or infinite"):
        tables.call("hashtable_assign", inputs)
    assert tables.num_rows == 0


def test_unknown_signatures_and_rows_for_a_shard_that_follows_a_log_are_refused() -> None:
    with pytest.raises(NotFoundError, match="no signature 'predict'; it has lookup, raw_lookup, hashtable_assign"):
        ShardTables({"model": store()}).call("predict", {})
    with pytest.raises(NotFoundError, match="no signature 'other/raw_assign'"):
        ShardTables({"model": store()}).call("other/raw_assign", {})
    following = ShardTables({"model": store()}, takes_rows=False)
    with pytest.raises(FailedPreconditionError, match="follows a delta log"):
        following.call("hashtable_assign", {"item_id": ids(1), "item_value": torch.ones(1, 2)})


def test_tables_of_several_stores_have_the_stores_name_in_front() -> None:
    tables = ShardTables({"b": store(), "a": store()})
    tables.call("a/raw_assign", {"id": ids(1), "id_split": ids(0, 1, 1), "flat_value": torch.ones(2)})
    tables.call("hashtable_assign", {"b/item_id": ids(1), "b/item_value": 2 * torch.ones(1, 2)})
    found = tables.call("raw_lookup", {"id": ids(1, 1), "id_split": ids(0, 1, 1, 2, 2)})
    assert found["flat_emb"].tolist() == [1.0, 1.0, 2.0, 2.0]
    assert tables.call("lookup", {"b/item": ids(1)})["b/item"].tolist() == [[2.0, 2.0]]


def test_wide_keys_are_found_by_their_bucket_and_refused_without_it() -> None:
    embeddings = Embeddings(slots={"query": Slot(dim=2), "word": Slot(dim=2)})
    wide = torch.tensor([-5, 1 << 60, 17])
    embeddings({"query": wide, "word": wide})
    names = list(embeddings.store.schema.names)
    batch = IdBatchReader(list(embeddings.placed.values()), names).read({"query": wide, "word": wide})
    schema = embeddings.store.schema
    config = TableConfig([Segment(2)], serving=True, wide_slots=schema.tables[0].wide_slots)
    tables = ShardTables({"model": LocalStore({names[0]: config})})
    rows = torch.arange(12, dtype=torch.float32).reshape(6, 2)
    buckets = torch.from_numpy(batch.buckets.astype(np.int32))
    inputs = {f"{names[0]}_id": batch.key_tensor, f"{names[0]}_value": rows}

    tables.call("hashtable_assign", {**inputs, f"{names[0]}_bucket": buckets})
    found = tables.call("lookup", {names[0]: batch.key_tensor, f"{names[0]}_bucket": buckets})
    raw = tables.call("raw_lookup", {"id": batch.key_tensor, "id_split": ids(0, 6), "bucket": buckets})

    assert torch.equal(found[names[0]], rows)
    assert torch.equal(raw["flat_emb"].reshape(6, 2), rows)
    with pytest.raises(InvalidArgumentError, match="does not contain its bucket"):
        tables.call("hashtable_assign", inputs)
    with pytest.raises(InvalidArgumentError, match="is not of the bucket that came with it"):
        tables.call(
            "lookup", {names[0]: batch.key_tensor, f"{names[0]}_bucket": torch.full((6,), 1024, dtype=torch.int32)}
        )


def test_half_precision_rows_are_read_as_they_are_kept() -> None:
    config = TableConfig([Segment(2, compressor=compressors.Fp16())], serving=True)
    tables = ShardTables({"model": LocalStore({"item": config})})
    tables.call("hashtable_assign", {"item_id": ids(1), "item_value": torch.tensor([[0.1, 65000.0]])})
    assert torch.equal(tables.call("lookup", {"item": ids(1)})["item"], torch.tensor([[0.1, 65000.0]]).half().float())


def test_a_shard_that_is_closed_again_waits_for_no_clients_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(time, "sleep", sleeps.append)
    shard = serve_shard("m", "0/1", tables={"model": {"item": TableConfig([Segment(2)], serving=True)}})
    options = ServerConfig(port=None, grpc_port=0, lame_duck_seconds=7.0, drain_seconds=1.0)
    service = ShardService(shard, options, metrics=ServingMetrics())
    service.close()
    service.close()
    assert sleeps.count(7.0) == 1


class Known(ServiceDiscovery):
    """A discovery service in memory."""

    def __init__(self) -> None:
        self.addresses: dict[str, dict[int, str]] = {}

    def register(self, name: str, index: int, addr: str) -> None:
        self.addresses.setdefault(name, {})[index] = addr

    def deregister(self, name: str, index: int, addr: str) -> None:
        del self.addresses[name][index]

    def query(self, name: str) -> dict[int, str]:
        return self.addresses.get(name, {})

    def query_all(self) -> dict[str, dict[int, str]]:
        return self.addresses


def test_a_shard_whose_threads_fail_is_registered_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_service, "GAUGE_SECONDS", 0.01)
    monkeypatch.setattr(shard_service, "_TRY_AGAIN_SECONDS", 0.01)
    metrics, discovery = ServingMetrics(), Known()
    shows = FailingOnce(metrics.show_model, thread="serving-gauges")
    registers = FailingOnce(discovery.register, thread="monolith-shard-registers")
    metrics.show_model = shows  # type: ignore[method-assign]
    discovery.register = registers  # type: ignore[method-assign]
    shard = serve_shard("m", "0/1", tables={"model": {"item": TableConfig([Segment(2)], serving=True)}})
    options = ServerConfig(port=None, grpc_port=0, lame_duck_seconds=0.0, drain_seconds=1.0)
    registration = Registration(discovery, "ps_0", 3)
    with ShardService(shard, options, metrics=metrics, registration=registration):
        shows.require_survived()
        registers.require_survived()
        assert discovery.addresses == {"ps_0": {3: shard.server.address}}
    assert discovery.addresses == {"ps_0": {}}
