"""Rows of a log pushed to receivers: which get them, in which order, and what failures cost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from monolith import _core
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.deltalog import DeltaLog
from monolith.errors import InvalidArgumentError, NotFoundError, OpError
from monolith.online import DeltaPublisher
from monolith.serving.protos import parameter_sync_pb2 as sync_messages
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.push.client import DiscoverySyncBackend, ParameterSyncClient, result_json
from monolith.serving.push.log_rows import StoreRows, TableRows, assign_request, split_rows
from monolith.serving.push.target_run import PushPositions
from monolith.serving.shards.channels import ShardChannels
from monolith.serving.shards.replicas import shard_role
from monolith.serving.shards.served_shard import ServedShard, serve_shard
from monolith.serving.tensor_messages import value_of
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup, compressors
from ports import free_port

DIMS = {"item": 2, "user": 3}
IDS = torch.arange(60)


class Run:
    """A trainer that publishes."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder / "log")
        self.store = LocalStore({name: TableConfig([Segment(dim)]) for name, dim in DIMS.items()})
        self.tables = TableGroup.of_store(self.store)
        self.publisher = DeltaPublisher(self.store, self.place)
        self.publisher.publish()

    def assign(self, table: str, values: dict[int, float]) -> None:
        rows = [[value] * DIMS[table] for value in values.values()]
        self.tables[table].assign(list(values), rows)
        self.publisher.publish()

    def remove(self, table: str, keys: list[int]) -> None:
        self.tables[table].erase(keys)
        self.publisher.publish()

    def save_base(self, name: str) -> None:
        log = DeltaLog(self.place)
        log.save_base({"model": self.store}, name=name, numbers=log.position())
        log.trim()

    def expected(self) -> dict[str, torch.Tensor]:
        return {name: self.tables[name].lookup(IDS) for name in DIMS}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.publisher.close()


def receiver(**options: Any) -> ServedShard:
    tables = {name: TableConfig([Segment(dim)], serving=True, skip_zero=True) for name, dim in DIMS.items()}
    return serve_shard("m", "0/1", tables={"model": tables}, **options)


def rows_of(shard: ServedShard) -> dict[str, torch.Tensor]:
    return shard.server.tables.call("lookup", dict.fromkeys(DIMS, IDS))


def require_equal(shard: ServedShard, run: Run) -> None:
    found, wanted = rows_of(shard), run.expected()
    assert all(torch.equal(found[name], wanted[name]) for name in DIMS)


def codes(result: sync_messages.PushResult) -> list[int]:
    return [each.status_code for each in result.responses]


def counts(result: sync_messages.PushResult) -> list[int]:
    return [each.update_num for each in result.responses]


@contextmanager
def recording(
    answer: Callable[[messages.PredictRequest, Any], object] | None = None,
) -> Iterator[tuple[str, list[messages.PredictRequest]]]:
    """A receiver that is none of ours: it tells no life, keeps what it is sent, and does what a test wants."""
    seen: list[messages.PredictRequest] = []

    def predict(request: messages.PredictRequest, context: Any) -> messages.PredictResponse:
        if answer is not None:
            answer(request, context)
        seen.append(request)
        return messages.PredictResponse()

    def status(request: messages.GetModelStatusRequest, context: Any) -> messages.GetModelStatusResponse:
        version = messages.ModelVersionStatus(version=3, state=messages.ModelVersionStatus.AVAILABLE)
        return messages.GetModelStatusResponse(model_version_status=[version])

    def unary(call: Any, request: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(call, request.FromString, lambda found: found.SerializeToString())

    handlers = [
        grpc.method_handlers_generic_handler(
            "tensorflow.serving.PredictionService", {"Predict": unary(predict, messages.PredictRequest)}
        ),
        grpc.method_handlers_generic_handler(
            "tensorflow.serving.ModelService", {"GetModelStatus": unary(status, messages.GetModelStatusRequest)}
        ),
    ]
    threads = futures.ThreadPoolExecutor(2)
    server = grpc.server(threads, handlers=handlers)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address, seen
    finally:
        server.stop(None).wait()
        threads.shutdown()


@pytest.mark.parametrize("signature", ["raw_assign", "hashtable_assign"])
def test_receivers_have_the_rows_of_the_trainer_and_removed_ids_are_deleted(run: Run, signature: str) -> None:
    random = np.random.default_rng(3)
    with receiver() as shard:
        client = ParameterSyncClient(run.place, "m", "0/1", [shard.server.address], signature=signature)
        with client:
            for _ in range(8):
                table = str(random.choice(list(DIMS)))
                keys = random.choice(60, 10, replace=False).tolist()
                run.assign(table, {int(key): float(random.integers(1, 100)) for key in keys})
                run.remove(table, [int(key) for key in keys[:3]])
                assert codes(client.push()) == [0]
                require_equal(shard, run)
        assert shard.server.tables.num_rows == sum(len(run.tables[name]) for name in DIMS)


def test_only_what_changed_is_pushed_again_and_nothing_where_nothing_changed(run: Run) -> None:
    run.assign("item", {1: 1.0, 2: 2.0})
    with receiver() as shard, ParameterSyncClient(run.place, "m", "0/1", [shard.server.address]) as client:
        assert counts(client.push()) == [2]
        assert counts(client.push()) == [0]
        run.assign("user", {3: 3.0})
        assert counts(client.push()) == [1]


def test_a_push_that_fails_is_repeated_and_other_receivers_get_theirs(run: Run) -> None:
    fails = [True]

    def refuse(_: Any, context: Any) -> None:
        if fails[0]:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")

    run.assign("item", {1: 1.0})
    with recording(refuse) as (address, seen), receiver() as shard:
        with ParameterSyncClient(run.place, "m", "0/1", [address, shard.server.address]) as client:
            result = client.push()
            assert codes(result) == [14, 0]
            assert result.responses[0].target == address
            assert "not now" in result.responses[0].error_message
            require_equal(shard, run)
            run.assign("item", {2: 2.0})
            assert codes(client.push()) == [14, 0]
            fails[0] = False
            assert counts(client.push()) == [2, 0]
        keys = [value_of(request.inputs["id"]).tolist() for request in seen]
        assert keys == [[1], [2]]


def test_a_new_receiver_begins_at_a_base_and_gets_what_followed_it(run: Run) -> None:
    run.assign("item", dict.fromkeys(range(50), 1.0))
    run.assign("user", dict.fromkeys(range(50), 2.0))
    run.remove("item", [7])
    run.save_base("first")
    run.assign("item", {3: 9.0})
    with receiver() as old, receiver() as new:
        with ParameterSyncClient(run.place, "m", "0/1", [old.server.address]) as client:
            assert counts(client.push()) == [49 + 50 + 1]
            client.set_targets([old.server.address, new.server.address])
            assert counts(client.push()) == [0, 100]
        require_equal(old, run)
        require_equal(new, run)


def test_a_receiver_that_cannot_report_its_ids_gets_the_base_and_a_warning(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.assign("item", {1: 1.0})
    run.save_base("first")
    with recording() as (address, seen), ParameterSyncClient(run.place, "m", "0/1", [address]) as client:
        assert counts(client.push()) == [1]
        asked = [request for request in seen if request.model_spec.signature_name.endswith("/raw_keys")]
        assert len(asked) == 1
    assert len([each for each in caplog.records if "removed before its base may stay" in each.getMessage()]) == 1


def test_a_receiver_that_was_started_again_begins_at_a_base(run: Run) -> None:
    run.assign("item", dict.fromkeys(range(50), 1.0))
    port = free_port()
    first = receiver(port=port)
    with ParameterSyncClient(run.place, "m", "0/1", [first.server.address], timeout_seconds=60.0) as client:
        assert counts(client.push()) == [50]
        first.close()
        run.assign("user", {1: 2.0})
        assert codes(client.push()) == [14]
        with receiver(port=port) as again:
            while codes(client.push()) != [0]:
                pass  # until its connection is there again
            require_equal(again, run)


def test_a_receiver_that_is_started_again_within_a_push_begins_at_a_base(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.assign("item", dict.fromkeys(range(50), 1.0))
    port = free_port()
    receivers = [receiver(port=port)]
    life_of = ShardChannels.life_of

    def restarted_behind(self: ShardChannels, *arguments: Any) -> str:
        life = life_of(self, *arguments)
        receivers[0].close()
        receivers.append(receiver(port=port))
        while True:  # until its connection is there again
            with suppress(OpError):
                assert life_of(self, *arguments) != life
                return life

    with ParameterSyncClient(run.place, "m", "0/1", [receivers[0].server.address], timeout_seconds=60.0) as client:
        assert counts(client.push()) == [50]
        run.assign("user", {1: 2.0})
        with monkeypatch.context() as patch:
            patch.setattr(ShardChannels, "life_of", restarted_behind)
            assert codes(client.push()) == [10]
        assert codes(client.push()) == [0]
    with receivers[1] as again:
        require_equal(again, run)


def test_positions_outlive_the_process_that_pushes(run: Run, tmp_path: Path) -> None:
    positions = str(tmp_path / "positions" / "m.json")
    run.assign("item", dict.fromkeys(range(50), 1.0))
    with receiver() as shard:
        for number in (50, 0):
            with ParameterSyncClient(run.place, "m", "0/1", [shard.server.address], positions=positions) as client:
                assert counts(client.push()) == [number]
        run.assign("item", {3: 2.0})
        with ParameterSyncClient(run.place, "m", "0/1", [shard.server.address], positions=positions) as client:
            assert counts(client.push()) == [1]
        run.remove("item", [7])
        run.save_base("first")  # the removal is not in the log any more
        Path(positions).write_text("[1", encoding="utf-8")
        with ParameterSyncClient(run.place, "m", "0/1", [shard.server.address], positions=positions) as client:
            assert counts(client.push()) == [49 + 1], "the rows of the base, and zeros for the id that it has not"
        require_equal(shard, run)
    assert PushPositions(positions, log="elsewhere").of("a", life="b").numbers == {}


def test_a_log_that_truncated_what_a_receiver_needs_restarts_at_its_base(run: Run) -> None:
    run.assign("item", dict.fromkeys(range(30), 1.0))
    with receiver() as shard, ParameterSyncClient(run.place, "m", "0/1", [shard.server.address]) as client:
        client.push()
        for value in range(5):
            run.assign("item", {3: 10.0 + value})
            run.remove("item", [20 + value])
            run.publisher.close()
            run.publisher = DeltaPublisher(run.store, run.place)  # another generation
            run.publisher.publish()
        run.save_base("second")
        run.assign("user", {4: 4.0})
        assert codes(client.push()) == [0]
        require_equal(shard, run)


def test_a_receiver_that_hangs_costs_its_timeout_and_a_run_ends_at_its_limit(run: Run) -> None:
    go_on = threading.Event()
    run.assign("item", {1: 1.0})
    with recording(lambda request, context: go_on.wait(60)) as (address, _), receiver() as shard:
        client = ParameterSyncClient(run.place, "m", "0/1", [address, shard.server.address], timeout_seconds=0.3)
        with client:
            assert codes(client.push()) == [4, 0]
            require_equal(shard, run)
            run.assign("item", {2: 1.0})
            result = client.push(limit_seconds=0.0)
            assert codes(result) == [4, 4]
            assert "the run has reached its limit" in result.responses[1].error_message
            go_on.set()
            assert codes(client.push()) == [0, 0]
            require_equal(shard, run)


def test_a_receiver_of_another_schema_is_reported_and_the_others_get_theirs(run: Run) -> None:
    run.assign("item", {1: 1.0})
    other = {"item": TableConfig([Segment(5)], serving=True), "user": TableConfig([Segment(3)], serving=True)}
    with (
        serve_shard("m", "0/1", tables={"model": other}) as wrong,
        serve_shard("n", "0/1", tables={"model": other}) as far,
        receiver() as shard,
    ):
        targets = [wrong.server.address, far.server.address, shard.server.address]
        with ParameterSyncClient(run.place, "m", "0/1", targets) as client:
            result = client.push()
        assert codes(result) == [3, 5, 0]
        assert "floats expected" in result.responses[0].error_message
        assert "no model 'm:ps_0'" in result.responses[1].error_message
        require_equal(shard, run)
        assert wrong.server.tables.num_rows == 0


def test_rows_that_are_not_numbers_are_skipped_and_the_rest_continues(run: Run) -> None:
    run.assign("item", {1: 1.0, 2: 2.0})
    with receiver() as shard, ParameterSyncClient(run.place, "m", "0/1", [shard.server.address]) as client:
        client.push()
        run.assign("item", {1: float("nan"), 2: 5.0, 3: float("inf")})
        assert counts(client.push()) == [1]
        assert rows_of(shard)["item"][:4].tolist() == [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0], [0.0, 0.0]]


def test_every_shard_gets_its_buckets_and_no_others(run: Run) -> None:
    run.assign("item", {key: float(key + 1) for key in range(60)})
    tables = {name: TableConfig([Segment(dim)], serving=True) for name, dim in DIMS.items()}
    pushed = 0
    for index in range(3):
        with serve_shard("m", f"{index}/3", tables={"model": tables}) as shard:
            with ParameterSyncClient(run.place, "m", f"{index}/3", [shard.server.address]) as client:
                result = client.push()
            assert codes(result) == [0]
            pushed += counts(result)[0]
            assert shard.server.tables.num_rows == counts(result)[0]
    assert pushed == 60


@pytest.mark.slow
def test_requests_are_at_most_four_mebibytes_and_parts_take_equal_shares() -> None:
    random = np.random.default_rng(1)

    def table(name: str, count: int, dim: int) -> TableRows:
        keys = random.integers(0, 1 << 40, count)
        return TableRows(name, keys, np.zeros(count, np.uint16), random.normal(size=(count, dim)).astype(np.float32))

    rows = StoreRows("model", [table("a", 100_000, 16), table("b", 9_001, 64), table("c", 0, 4)])
    for signature in ("raw_assign", "hashtable_assign"):
        parts = split_rows(rows)
        assert len(parts) == 3
        sizes = [assign_request(part, model="m:ps_0", signature=signature).ByteSize() for part in parts]
        assert max(sizes) <= 4 << 20
        for number in range(3):
            lengths = [len(part.tables[number].keys) for part in parts]
            assert max(lengths) - min(lengths) <= 1
            joined = np.concatenate([part.tables[number].keys for part in parts])
            assert np.array_equal(joined, rows.tables[number].keys)
    assert split_rows(StoreRows("model", [table("c", 0, 4)])) == []
    assert len(split_rows(StoreRows("model", [table("d", 3, 4000)]), at_most=100)) == 3


def test_wide_keys_and_compressed_rows_arrive_as_they_are_served(tmp_path: Path) -> None:
    config = TableConfig([Segment(2, compressor=compressors.Fp16())], wide_slots=[5])
    store = LocalStore({"item": config})
    wide = torch.tensor([-(1 << 63) | 77, 5 << 48 | 9])
    buckets = torch.tensor([3, 0], dtype=torch.int16)
    buckets[1] = int(_core.bucket_of(wide[1:].numpy())[0])
    store.native.core.assign(
        0,
        wide.numpy(),
        np.array([0.1, 0.2, 0.3, 0.4], np.float32),
        np.full(2, 5, np.int64),
        False,
        -1,
        buckets.numpy().astype(np.uint16),
    )
    publisher = DeltaPublisher(store, str(tmp_path / "log"))  # without its thread: what a round has is decided here
    publisher.publish()  # a new log begins with the rows that are there
    served = {"item": TableConfig([Segment(2)], serving=True, wide_slots=[5])}
    with serve_shard("m", "0/1", tables={"model": served}) as shard:
        with ParameterSyncClient(str(tmp_path / "log"), "m", "0/1", [shard.server.address]) as client:
            assert counts(client.push()) == [2]
            store.touch("item", wide[:1], buckets=buckets[:1])
            publisher.publish()
            assert counts(client.push()) == [1]  # only what was touched since
        publisher.close()
        found = shard.server.tables.call("lookup", {"item": wide, "item_bucket": buckets.to(torch.int32)})
    assert torch.equal(found["item"], torch.tensor([[0.1, 0.2], [0.3, 0.4]]).half().float())


def test_messages_and_json_have_the_names_and_numbers_of_upstream() -> None:
    numbers = {
        name: {field.name: field.number for field in found.fields}
        for name, found in sync_messages.DESCRIPTOR.message_types_by_name.items()
    }
    assert numbers == {
        "DeltaEmbeddingHashTable": {"unique_id": 1, "dim_size": 2, "fids": 3, "embeddings": 4},
        "PushRequest": {
            "model_name": 1,
            "signature_name": 2,
            "delta_hash_tables": 3,
            "timeout_in_ms": 4,
            "delta_multi_hash_tables": 5,
        },
        "PushResponse": {"status_code": 1, "error_message": 2, "target": 3, "update_num": 4},
        "PushResult": {"responses": 1},
        "ClientConfig": {
            "model_name": 1,
            "signature_name": 2,
            "targets": 3,
            "timeout_in_ms": 4,
            "targets_extra_info": 5,
        },
    }
    assert sync_messages.PushRequest().timeout_in_ms == 1000
    assert sync_messages.ClientConfig.TargetExtraInfo().replica_id == -1
    response = sync_messages.PushResponse(status_code=14, error_message="away", target="a:1", update_num=2)
    assert json.loads(result_json(sync_messages.PushResult(responses=[response]))) == {
        "responses": [{"status_code": 14, "error_message": "away", "target": "a:1", "update_num": 2}]
    }
    # Not packed: every float has its tag, as proto2 writes it.
    delta = sync_messages.DeltaEmbeddingHashTable(unique_id="item", dim_size=2, fids=[7], embeddings=[1.0, 1.0])
    assert delta.SerializeToString().count(b"\x25\x00\x00\x80\x3f") == 2


def test_receivers_of_a_backend_come_from_discovery(run: Run, tmp_path: Path) -> None:
    run.assign("item", {1: 1.0})
    with HostServiceDiscovery(str(tmp_path / "hosts")) as discovery, receiver() as shard:
        backend = DiscoverySyncBackend(discovery, run.place, "m", 1, positions=str(tmp_path / "positions"))
        assert list(backend.get_sync_targets("ps_0")) == []
        discovery.register(shard_role("m", 0), 0, shard.server.address)
        with backend.open_pusher(0) as pusher:
            pusher.set_targets(backend.get_sync_targets("ps_0"))
            assert codes(pusher.push()) == [0]
        require_equal(shard, run)
        with pytest.raises(InvalidArgumentError, match="from ps_0 to ps_0 expected, got 'ps_1'"):
            backend.get_sync_targets("ps_1")
    assert (tmp_path / "positions" / "m-ps-0-of-1.json").exists()


def test_a_missing_log_is_reported(tmp_path: Path) -> None:
    client = ParameterSyncClient(str(tmp_path / "none"), "m", "0/1", ["127.0.0.1:1"])
    with client, pytest.raises(NotFoundError):
        client.push()
