"""Rows of shards that are processes: killed, stopped, wrong and late ones."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from forked_starts import ForkingProcess
from monolith import _core
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.deltalog import DeltaLog
from monolith.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
)
from monolith.online import DeltaPublisher
from monolith.rpc.credentials import ClientCredentials, ServerCredentials
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.shards.channels import HedgedRequest, ShardChannels
from monolith.serving.shards.replicas import DiscoveredReplicas, ListedReplicas, ShardNumber, shard_role
from monolith.serving.shards.served_shard import serve_shard
from monolith.serving.shards.sharded_rows import ShardedRows
from monolith.serving.tensor_messages import message_of, value_of
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup, compressors
from serving.shard_process import ShardProcess, ShardProcesses

DIMS = {"item": 2, "user": 3}
NUM_IDS = 200
LONG = 60_000.0
"""Milliseconds that only a hang lasts for."""


def trained() -> LocalStore:
    store = LocalStore({name: TableConfig([Segment(dim)]) for name, dim in DIMS.items()})
    for name, dim in DIMS.items():
        rows = torch.arange(NUM_IDS * dim, dtype=torch.float32).reshape(NUM_IDS, dim) + 1
        TableGroup.of_store(store)[name].assign(torch.arange(NUM_IDS), rows)
    return store


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("log") / "log")
    store = LocalStore({name: TableConfig([Segment(dim)]) for name, dim in DIMS.items()})
    publisher = DeltaPublisher(store, place)
    publisher.publish()
    source = TableGroup.of_store(trained())
    for name in DIMS:
        TableGroup.of_store(store)[name].assign(torch.arange(NUM_IDS), source[name].lookup(torch.arange(NUM_IDS)))
    publisher.publish()
    publisher.close()
    return place


@pytest.fixture
def processes(forking: ForkingProcess) -> Iterator[ShardProcesses]:
    with forking.forked_starts(), ShardProcesses() as started:
        yield started


@pytest.fixture
def shards(processes: ShardProcesses, log: str) -> list[list[ShardProcess]]:
    """Two shards of two replicas each."""
    return [[processes.start(model="m", shard=f"{index}/2", follow=log) for _ in range(2)] for index in range(2)]


def addresses(shards: list[list[ShardProcess]]) -> list[list[str]]:
    return [[each.address for each in replicas] for replicas in shards]


def everything() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randint(0, NUM_IDS + 20, (300,), generator=generator) for name in DIMS}


def expected(ids: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: TableGroup.of_store(trained())[name].lookup(keys) for name, keys in ids.items()}


def require_equal(found: dict[str, torch.Tensor], ids: dict[str, torch.Tensor]) -> None:
    wanted = expected(ids)
    assert all(torch.equal(found[name], wanted[name]) for name in DIMS)


@pytest.mark.slow
def test_rows_are_those_of_one_table_while_replicas_die_and_hang(shards: list[list[ShardProcess]]) -> None:
    ids = everything()
    with ShardedRows("m", DIMS, addresses(shards), max_rpc_deadline_millis=LONG, hedge_millis=50) as remote:
        found = remote.lookup(ids)
        require_equal(found.rows, ids)
        assert found.lost_shards == ()
        assert found.sparse["model.0000-1024"] >= 1

        shards[0][0].send(signal.SIGKILL)
        shards[1][1].send(signal.SIGSTOP)
        for _ in range(10):
            require_equal(remote.lookup(ids).rows, ids)
        hung = shards[1][1].address
        for _ in range(100):  # it is asked first by and by, and then no more for a while
            if hung in remote._failed_at:
                break
            require_equal(remote.lookup(ids).rows, ids)
        assert remote._order(1)[-1] == hung

        shards[1][1].send(signal.SIGCONT)
        shards[1][0].send(signal.SIGKILL)
        for _ in range(10):
            require_equal(remote.lookup(ids).rows, ids)


def test_a_shard_that_hangs_ends_a_lookup_at_its_deadline_and_zeros_are_a_policy(
    shards: list[list[ShardProcess]],
) -> None:
    ids = everything()
    for replica in shards[1]:
        replica.send(signal.SIGSTOP)
    with ShardedRows("m", DIMS, addresses(shards), max_rpc_deadline_millis=LONG) as remote:
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError, match=r"shard 1 of m: none of its 2 replicas answered within 500 ms"):
            remote.lookup(ids, deadline_millis=500)
        assert 0.4 < time.monotonic() - began < LONG / 1000
    with ShardedRows("m", DIMS, addresses(shards), max_rpc_deadline_millis=500, lost_shards="zeros") as remote:
        found = remote.lookup(ids)
    assert found.lost_shards == (1,)
    for name, keys in ids.items():
        is_lost = torch.from_numpy(_core.bucket_of(keys.numpy()) >= 512)
        assert torch.equal(found.rows[name], torch.where(is_lost[:, None], 0.0, expected(ids)[name]))
        assert 0 < is_lost.sum() < len(keys)


def test_a_shard_without_replicas_fails_with_the_error_of_its_last_one(shards: list[list[ShardProcess]]) -> None:
    for replica in shards[0]:
        replica.send(signal.SIGKILL)
    with ShardedRows("m", DIMS, addresses(shards), max_rpc_deadline_millis=LONG) as remote:
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="shard at 127"):
            remote.lookup(everything())
        assert time.monotonic() - began < LONG / 1000  # refused connections need no deadline


@pytest.mark.slow
def test_importing_the_remote_predictor_opens_nothing() -> None:
    program = (
        "import os, threading, monolith.serving.shards.sharded_rows\n"
        "links = [os.readlink(f'/proc/self/fd/{each}') for each in os.listdir('/proc/self/fd') if"
        " os.path.islink(f'/proc/self/fd/{each}')]\n"
        "import sys\n"
        "assert not any(link.startswith('socket:') for link in links), links\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert 'grpc' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=240).returncode == 0


# In one process


class Liar:
    """A replica that answers with what a test wants."""

    def __init__(self, answer: Any) -> None:
        self.calls = 0

        def predict(request: bytes, context: Any) -> bytes:
            self.calls += 1
            found = answer(messages.PredictRequest.FromString(request), context)
            return found if isinstance(found, bytes) else bytes(found.SerializeToString())

        handler = grpc.method_handlers_generic_handler(
            "tensorflow.serving.PredictionService", {"Predict": grpc.unary_unary_rpc_method_handler(predict)}
        )
        self._threads = futures.ThreadPoolExecutor(2)
        self._server = grpc.server(self._threads, handlers=[handler])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()
        self._threads.shutdown()


def served(**options: Any) -> Any:
    tables = {name: TableConfig([Segment(dim)], serving=True) for name, dim in DIMS.items()}
    return serve_shard("m", "0/1", tables={"model": tables}, **options)


ANSWERS = {
    "too few rows": lambda request, _: messages.PredictResponse(outputs={"item": message_of(torch.ones(1, 2))}),
    "another dim": lambda request, _: messages.PredictResponse(outputs={"item": message_of(torch.ones(2, 5))}),
    "another dtype": lambda request, _: messages.PredictResponse(
        outputs={"item": message_of(torch.ones(2, 2, dtype=torch.float64))}
    ),
    "no table": lambda request, _: messages.PredictResponse(),
    "truncated": lambda request, _: messages.PredictResponse(
        outputs={"item": message_of(torch.ones(2, 2))}
    ).SerializeToString()[:-5],
    "bytes that lie": lambda request, _: (
        messages.PredictResponse(
            outputs={"item": messages.PredictResponse(outputs={"item": message_of(torch.ones(2, 2))}).outputs["item"]}
        )
        .SerializeToString()
        .replace(b"\x12\x08\x12\x02\x08\x02\x12\x02\x08\x02", b"\x12\x08\x12\x02\x08\x02\x12\x02\x08\x7f")
    ),
    "an error": lambda request, context: context.abort(grpc.StatusCode.INTERNAL, "broken"),
    "another model": lambda request, context: context.abort(grpc.StatusCode.NOT_FOUND, "no model"),
    "overload": lambda request, context: context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_replica_that_answers_nonsense_is_replaced_and_alone_it_is_an_error(kind: str) -> None:
    liar = Liar(ANSWERS[kind])
    try:
        with served() as shard:
            shard.server.tables.call(
                "hashtable_assign", {"item_id": torch.tensor([1, 2]), "item_value": torch.ones(2, 2)}
            )
            both = [[liar.address, shard.server.address]]
            for _ in range(4):
                with ShardedRows("m", DIMS, both, max_rpc_deadline_millis=LONG) as remote:
                    found = remote.lookup({"item": torch.tensor([1, 2])})
                    assert found.rows["item"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
        with ShardedRows("m", DIMS, [[liar.address]], max_rpc_deadline_millis=LONG) as remote:
            with pytest.raises(OpError) as caught:
                remote.lookup({"item": torch.tensor([1, 2])})
            assert not isinstance(caught.value, InvalidArgumentError | DeadlineExceededError)
    finally:
        liar.close()


def test_what_a_shard_refuses_is_not_tried_elsewhere() -> None:
    def refuse(request: Any, context: Any) -> None:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such table")

    liars = [Liar(refuse), Liar(refuse)]
    try:
        both = [[each.address for each in liars]]
        with (
            ShardedRows("m", DIMS, both, max_rpc_deadline_millis=LONG) as remote,
            pytest.raises(InvalidArgumentError, match="no such table"),
        ):
            remote.lookup({"item": torch.tensor([1])})
        assert sum(each.calls for each in liars) == 1
    finally:
        for each in liars:
            each.close()


def test_a_connection_that_is_cut_in_the_middle_is_an_error_and_another_replica_answers() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def cut() -> None:
        connections = []
        while not stop.is_set():
            try:
                connections.append(listener.accept()[0])
            except OSError:
                break
            connections[-1].recv(64)
            connections[-1].shutdown(socket.SHUT_WR)  # half closed: it still reads, and says nothing
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=cut, daemon=True)
    thread.start()
    try:
        with served() as shard:
            port = listener.getsockname()[1]
            both = [[f"127.0.0.1:{port}", shard.server.address]]
            with ShardedRows("m", DIMS, both, max_rpc_deadline_millis=LONG, hedge_millis=50) as remote:
                for _ in range(5):
                    assert remote.lookup({"item": torch.tensor([1])}).rows["item"].tolist() == [[0.0, 0.0]]
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_token_is_needed_where_the_shard_requires_one() -> None:
    with served(credentials=ServerCredentials(token="secret")) as shard:  # noqa: S106 - of this test
        for token, known in ((None, False), ("wrong", False), ("secret", True)):
            credentials = ClientCredentials(token=token)
            with ShardedRows(
                "m", DIMS, [[shard.server.address]], credentials=credentials, max_rpc_deadline_millis=LONG
            ) as remote:
                if known:
                    remote.lookup({"item": torch.tensor([1])})
                    continue
                with pytest.raises(UnauthenticatedError):
                    remote.lookup({"item": torch.tensor([1])})


def test_another_model_version_or_signature_is_not_found_and_a_filter_is_honoured() -> None:
    with served(version=7) as shard:
        channels = ShardChannels()

        def ask(**changes: Any) -> Any:
            spec = messages.ModelSpec(name="m:ps_0", signature_name="lookup")
            spec.MergeFrom(messages.ModelSpec(**changes.pop("spec", {})))
            request = messages.PredictRequest(model_spec=spec, **changes)
            return channels.predict(shard.server.address, request, LONG / 1000).result().response

        inputs = {"item": message_of(torch.tensor([1])), "user": message_of(torch.tensor([1]))}
        answer = ask(inputs=inputs, output_filter=["user"])
        assert list(answer.outputs) == ["user"]
        assert (answer.model_spec.name, answer.model_spec.version.value) == ("m:ps_0", 7)
        assert value_of(answer.outputs["user"]).shape == (1, 3)
        ask(inputs=inputs, spec={"version": {"value": 7}})
        for changes, error in (
            ({"spec": {"name": "m"}}, NotFoundError),
            ({"spec": {"version": {"value": 8}}}, NotFoundError),
            ({"spec": {"version_label": "stable"}}, NotFoundError),
            ({"spec": {"signature_name": "predict"}}, NotFoundError),
            ({"inputs": inputs, "output_filter": ["price"]}, InvalidArgumentError),
        ):
            with pytest.raises(error):
                ask(**changes)
        channels.close()


def test_replicas_come_from_discovery_and_one_that_comes_later_is_found(tmp_path: Path) -> None:
    with served() as shard, HostServiceDiscovery(str(tmp_path)) as discovery:
        replicas = DiscoveredReplicas(discovery, "m", 1, refresh_seconds=0.0)
        with ShardedRows("m", DIMS, replicas, max_rpc_deadline_millis=LONG) as remote:
            with pytest.raises(UnavailableError, match="shard 0 of m: no replica of it is known"):
                remote.lookup({"item": torch.tensor([1])})
            discovery.register(shard_role("m", 0), 0, shard.server.address)
            assert remote.lookup({"item": torch.tensor([1])}).lost_shards == ()
    with pytest.raises(InvalidArgumentError, match="letters, digits"):
        shard_role("a b", 0)
    with pytest.raises(InvalidArgumentError, match="an address for every shard"):
        ListedReplicas([["127.0.0.1:1"], []])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ({"price": torch.tensor([1])}, "no table 'price'; there are item, user"),
        ({"item": torch.tensor([1.0])}, "ids must be int64"),
        ({"item": torch.tensor([[1]])}, "ids must be int64"),
    ],
)
def test_wrong_ids_are_refused_before_anything_is_sent(ids: dict[str, torch.Tensor], words: str) -> None:
    with ShardedRows("m", DIMS, [["127.0.0.1:1"]]) as remote, pytest.raises(InvalidArgumentError, match=words):
        remote.lookup(ids)


def test_a_race_calls_each_replica_once_and_hedges_by_its_clock() -> None:
    race = HedgedRequest(["a", "b", "c"], hedge_seconds=1.0)
    assert race.begin(10.0) == "a"
    assert race.hedge(10.9) is None
    assert race.hedge(11.0) == "b"
    assert race.failed(UnavailableError("a"), 11.5) == "c"
    assert race.next_hedge is None
    lost = [race.is_lost]
    for address in ("b", "c"):
        assert race.failed(UnavailableError(address), 12.0) is None
        lost.append(race.is_lost)
    assert lost == [False, False, True]
    assert [error.message for error in race.errors] == ["a", "b", "c"]
    assert HedgedRequest([], hedge_seconds=1.0).begin(0.0) is None
    assert HedgedRequest([], hedge_seconds=1.0).is_lost


def test_options_and_shard_numbers_that_cannot_be_are_refused() -> None:
    for options in ({"max_rpc_deadline_millis": 0}, {"hedge_millis": -1}, {"lost_shards": "ones"}):
        with pytest.raises((InvalidArgumentError, ValueError)):
            ShardedRows("m", DIMS, [["127.0.0.1:1"]], **options)
    for text in ("3/3", "a/b", "1", "0/0", "0/2000", "-1/2"):
        with pytest.raises(InvalidArgumentError):
            ShardNumber.parse(text)
    with pytest.raises(InvalidArgumentError, match="give an export, a log to follow"):
        serve_shard("m", "0/1")


def test_a_shard_keeps_only_rows_of_its_buckets_and_follows_what_comes(tmp_path: Path) -> None:
    store = LocalStore({"item": TableConfig([Segment(2, compressor=compressors.Fp16())])})
    table = TableGroup.of_store(store)["item"]
    with DeltaPublisher(store, str(tmp_path / "log")) as publisher:
        table.assign(torch.arange(100), torch.ones(100, 2))
        publisher.publish()
        with serve_shard("m", "1/3", follow=str(tmp_path / "log")) as shard:
            buckets = _core.bucket_of(np.arange(100))
            own = np.flatnonzero((buckets >= 342) & (buckets < 683))
            assert shard.server.tables.num_rows == len(own)
            table.assign(torch.from_numpy(own), torch.full((len(own), 2), 0.1))
            publisher.publish()
            assert shard.follower is not None
            shard.follower.catch_up(60)
            with closing(ShardChannels()) as channels:
                spec = messages.ModelSpec(name="m:ps_1", signature_name="lookup")
                request = messages.PredictRequest(model_spec=spec, inputs={"item": message_of(torch.from_numpy(own))})
                answer = channels.predict(shard.server.address, request, LONG / 1000).result()
            found = value_of(answer.response.outputs["item"])
            assert isinstance(found, torch.Tensor)
            assert torch.equal(found, torch.full((len(own), 2), 0.1).half().float())
            assert answer.sparse == DeltaLog(str(tmp_path / "log")).position()
            assert answer.life == shard.server.life


def test_tables_whose_compressor_has_a_range_need_their_configs(tmp_path: Path) -> None:
    store = LocalStore({"item": TableConfig([Segment(2, compressor=compressors.FixedR8())])})
    with DeltaPublisher(store, str(tmp_path / "log")) as publisher:
        TableGroup.of_store(store)["item"].assign([1], [[0.5, 0.25]])
        publisher.publish()
    with pytest.raises(OpError, match=r"table 'item': rows of fixed_r8 cannot be read by their schema alone"):
        serve_shard("m", "0/1", follow=str(tmp_path / "log"))
    tables = {"item": TableConfig([Segment(2, compressor=compressors.FixedR8())], serving=True)}
    with serve_shard("m", "0/1", follow=str(tmp_path / "log"), tables={"model": tables}) as shard:
        found = shard.server.tables.call("lookup", {"item": torch.tensor([1])})
    assert found["item"].tolist() == [[0.5, 0.25]]
