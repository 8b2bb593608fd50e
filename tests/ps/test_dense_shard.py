"""A shard takes nothing on trust: sizes, numbers and names are checked before a weight moves."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
)
from monolith.ps.dense import wire
from monolith.ps.dense.client import DenseClient
from monolith.ps.dense.shard import DenseShard
from monolith.ps.dense.wire import WORDS, Kind
from monolith.tables.batch import BatchStamp
from monolith.train._dense_step import DenseConfig, ServerDense
from ps.dense_fakes import FakeServers, OpenGate

STAMP = BatchStamp(worker=0, seq=0)


class TrainedServers(FakeServers):
    """One server, and who trains on it."""

    model: nn.Module
    client: DenseClient


@pytest.fixture
def servers() -> TrainedServers:
    made = TrainedServers(1)
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    client = DenseClient(model, SGD(model.parameters(), lr=0.5), made)
    client.join(0)
    made.model, made.client = model, client
    return made


def head(**changes: Any) -> bytes:
    values = {
        "stamp": wire.encode_stamps([STAMP])[0],
        "previous": -1,
        "incarnation": 1,
        "step": 0,
        "present": "11",
        "rates": {"dense": [{"lr": 0.5}]},
    }
    return wire.encode(**{**values, **changes})


GRADIENTS = np.ones(3, dtype=np.float32).tobytes()


def said_to_push(servers: TrainedServers) -> dict[str, Any]:
    answer = servers.carry(0, Kind.PUSH, head(), GRADIENTS, None)
    assert answer is not None
    return wire.decode(answer[0])


def weights(servers: TrainedServers) -> list[float]:
    servers.client.pull()
    return [value for parameter in servers.model.parameters() for value in parameter.flatten().tolist()]


def test_a_push_written_by_hand_moves_the_weights(servers: TrainedServers) -> None:
    assert said_to_push(servers) == {"is_new": True, "applied": 0, "others": 0}
    assert weights(servers) == [0.5, 0.5, 0.5]
    assert said_to_push(servers) == {"is_new": False, "applied": 0, "others": 0}
    assert weights(servers) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("kind", "call", "body", "message"),
    [
        (Kind.PUSH, head(), GRADIENTS[:-1], "gradients of 2 pieces are 12 bytes, got 11"),
        (Kind.PUSH, head(), GRADIENTS + b"x", "12 bytes, got 13"),
        (Kind.PUSH, head(present="10"), GRADIENTS, "gradients of 1 pieces are 4 bytes, got 12"),
        (Kind.PUSH, head(present="1"), GRADIENTS, "gradients of 2 pieces, as this server has, got 1"),
        (Kind.PUSH, head(rates={}), GRADIENTS, r"must be of the optimizers \['dense'\], got \[\]"),
        (Kind.PUSH, head(rates={"dense": []}), GRADIENTS, "'dense' has 1 groups, got rates of 0"),
        (Kind.PUSH, head(rates={"dense": [{}]}), GRADIENTS, "a group takes lr, a number, and"),
        (Kind.PUSH, head(rates={"dense": [{"lr": 1.0, "params": []}]}), GRADIENTS, "a group takes lr, a number, and"),
        (Kind.PUSH, head(rates={"dense": [{"lr": "high"}]}), GRADIENTS, "a group takes lr, a number, and .* 'high'"),
        (Kind.PUSH, head(rates={"dense": 3}), GRADIENTS, "a call of kind PUSH that cannot be"),
        (Kind.PUSH, head(step=None), GRADIENTS, "step must be an integer"),
        (Kind.PUSH, head(stamp=[0, -1, "", 0]), GRADIENTS, "must be >= 0"),
        (Kind.PUSH, head(stamp=[0]), GRADIENTS, "a call of kind PUSH that cannot be"),
        (Kind.PUSH, b"\xff", GRADIENTS, "not the head of a call"),
        (Kind.PUSH, b"[]", GRADIENTS, "not the head of a call"),
        (Kind.PULL, b"", b"", "the head of a pull has 8 bytes, got 0"),
        (Kind.PULL, wire.encode_pull(0, 1), b"", "has 1 regions, got number 1"),
        (Kind.PULL, wire.encode_pull(0, -1), b"", "has 1 regions, got number -1"),
        (Kind.FETCH, wire.encode(ticket=1, begin=0, end=1), b"", "freeze again"),
        (Kind.LOAD, wire.encode(ticket=1, bytes=4, begin=2), b"123", "a state of 4 bytes, got 3 bytes from 2 on"),
        (Kind.LOAD, wire.encode(ticket=1, bytes=4, begin=-1), b"1", "a state of 4 bytes"),
        (Kind.LOAD, wire.encode(ticket=1, bytes=2**62, begin=0), b"1", "no memory for a state of"),
        (Kind.RESUME, wire.encode(ticket=1, index_bytes=1, stamps=[]), b"", "load it first"),
        (Kind.CONFIGURE, wire.encode(origin=1, layout_bytes=2), b"{}", "this one differs: num_ps"),
        (Kind.CONFIGURE, wire.encode(origin=1), b"", "layout_bytes must be an integer"),
        (99, b"", b"", "there is no call of kind 99"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    servers: Any, kind: int, call: bytes, body: bytes, message: str
) -> None:
    with pytest.raises(OpError, match=message):
        servers.shards[0].call(WORDS, kind, call, memoryview(body))
    assert weights(servers) == [1.0, 1.0, 1.0]
    servers.carry(0, Kind.PUSH, head(), GRADIENTS, None)
    assert weights(servers) == [0.5, 0.5, 0.5]


def test_a_size_that_no_machine_has_is_reported_as_out_of_memory(servers: TrainedServers) -> None:
    with pytest.raises(ResourceExhaustedError, match="no memory"):
        servers.shards[0].call(WORDS, Kind.LOAD, wire.encode(ticket=1, bytes=2**62, begin=0), memoryview(b""))


def test_bytes_that_are_no_state_are_refused_and_the_weights_stay(servers: TrainedServers) -> None:
    for state in (
        b"{}      ",
        b"garbage!",
        b'{"tree":{},"tensors":[{"name":"x","dtype":"save","shape":[],"offset":0}]}',
    ):
        servers.carry(0, Kind.LOAD, wire.encode(ticket=len(state), bytes=len(state), begin=0), state, None)
        with pytest.raises(DataLossError, match="not what was sent"):
            servers.carry(0, Kind.RESUME, wire.encode(ticket=len(state), index_bytes=len(state), stamps=[]), b"", None)
    assert weights(servers) == [1.0, 1.0, 1.0]


def test_another_greeting_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must greet with b'dense', got b'rows"):
        DenseShard(0, 1, gate=OpenGate()).greet(b"rows\n", "somebody")


def test_no_call_is_accepted_before_a_client_has_configured_the_weights() -> None:
    shard = DenseShard(0, 1, gate=OpenGate())
    assert shard.capture(-1) is None
    for kind, call in ((Kind.PULL, wire.encode_pull(0, 0)), (Kind.JOIN, wire.encode(worker=0)), (Kind.PUSH, head())):
        with pytest.raises(FailedPreconditionError, match="no client has configured them yet"):
            shard.call(WORDS, kind, call, memoryview(b""))


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A rule that keeps the gradient it was given, and one that fails in the middle of a step."""
    module = types.ModuleType("their_rules")

    class Keeping(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    kept = self.state[parameter].setdefault("kept", [])
                    kept.append(parameter.grad)
                    parameter.data.sub_(group["lr"] * sum(kept))

    class Failing(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                parameter.data.zero_()
                raise RuntimeError("halfway")

    for made in (Keeping, Failing):
        made.__module__, made.__qualname__ = module.__name__, made.__name__
        setattr(module, made.__name__, made)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_user_rule_may_keep_its_gradients_after_their_memory_is_released(own_module: Any) -> None:
    servers = FakeServers(1, modules=["their_rules"])
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    client = DenseClient(model, own_module.Keeping(model.parameters(), lr=1.0), servers)
    client.join(0)
    for seq in range(3):
        model.weight.grad = torch.ones(1, 1)
        client.push(BatchStamp(worker=0, seq=seq), step=seq).result()
    client.pull()
    assert model.weight.item() == -6.0


def test_an_update_that_failed_half_way_stops_everything_until_a_state_is_put_back(own_module: Any) -> None:
    servers = FakeServers(1, modules=["their_rules"])
    model = nn.Linear(1, 1, bias=False)
    client = DenseClient(model, own_module.Failing(model.parameters(), lr=1.0), servers)
    saved = client.freeze().gather()
    client.join(0)
    model.weight.grad = torch.ones(1, 1)
    with pytest.raises(RuntimeError, match="halfway"):
        client.push(STAMP, step=0).result()
    assert servers.gates[0].inside == 0
    with pytest.raises(FailedPreconditionError, match=r"failed halfway \(batch 0 of worker 0.*restore the last"):
        client.pull()
    client.scatter(saved)
    assert torch.equal(model.weight, saved.weights["weight"])


def test_a_push_that_the_gate_rejects_is_not_applied_and_is_retried(servers: TrainedServers) -> None:
    servers.gates[0].is_open = False
    assert servers.shards[0].call(WORDS, Kind.PUSH, head(), memoryview(GRADIENTS)) is None
    assert weights(servers) == [1.0, 1.0, 1.0]
    servers.gates[0].is_open = True
    assert servers.shards[0].call(WORDS, Kind.PUSH, head(), memoryview(GRADIENTS)) is not None
    assert weights(servers) == [0.5, 0.5, 0.5]


def test_pulls_of_one_version_share_a_copy_and_memory_is_reused(servers: TrainedServers) -> None:
    def pull() -> Any:
        answer = servers.shards[0].call(WORDS, Kind.PULL, wire.encode_pull(0, 0), memoryview(b""))
        assert answer is not None
        return answer[1][0]

    first = pull()
    assert pull() is first
    address = first.__array_interface__["data"][0]
    servers.carry(0, Kind.PUSH, head(), GRADIENTS, None)
    second = pull()
    assert bytes(first) == np.ones(3, dtype=np.float32).tobytes()  # what was handed out stays
    assert bytes(second) == np.full(3, 0.5, dtype=np.float32).tobytes()
    del first
    next_push = head(stamp=[0, 1, "", 0], previous=0)
    servers.carry(0, Kind.PUSH, next_push, GRADIENTS, None)
    assert pull().__array_interface__["data"][0] == address


@pytest.mark.parametrize("previous", [-1, 1, 2])
def test_a_push_that_names_another_one_before_it_moves_nothing(servers: TrainedServers, previous: int) -> None:
    said_to_push(servers)
    push = head(stamp=[0, 2, "", 0], previous=previous)
    with pytest.raises(FailedPreconditionError, match=f"names {'none' if previous < 0 else previous} as the push"):
        servers.carry(0, Kind.PUSH, push, GRADIENTS, None)
    assert weights(servers) == [0.5, 0.5, 0.5]
    servers.carry(0, Kind.PUSH, head(stamp=[0, 2, "", 0], previous=0), GRADIENTS, None)
    assert weights(servers) == [0.0, 0.0, 0.0]


def test_a_server_reports_in_milliseconds_how_long_it_has_had_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("monolith.ps.dense.shard.time", types.SimpleNamespace(monotonic=lambda: now))
    servers = FakeServers(1)
    model = nn.Linear(2, 1)
    DenseClient(model, SGD(model.parameters(), lr=0.5), servers)
    now += 2.5
    answer = servers.carry(0, Kind.CONFIGURE, wire.encode(origin=1, layout_bytes=0), b"", None)
    assert answer is not None
    assert wire.decode(answer[0])["age_ms"] == 2500


def test_a_server_without_weights_has_no_batches_of_them_to_lose() -> None:
    servers, model = FakeServers(3), nn.Linear(1, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.5)
    client = DenseClient(model, optimizer, servers)
    (holder,) = [server for server, pieces in enumerate(client.layout.servers) if pieces]
    assert ServerDense(client, [optimizer], DenseConfig()).join(0) == {holder: None}
