"""Weights on servers learn bit for bit as they would here, whatever the number of servers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from monolith.checkpoint.state_dicts import named_state
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ps.dense.client import DenseClient
from monolith.tables.batch import BatchStamp
from ps.dense_fakes import FakeServers
from ps.dense_models import OPTIMIZERS, Weights, assert_same, values_of


def stamp(seq: int, worker: int = 0) -> BatchStamp:
    return BatchStamp(worker=worker, seq=seq, position=b"%d" % seq, event_time_ms=seq)


def locally(kind: str, steps: int) -> tuple[Weights, torch.optim.Optimizer]:
    model = Weights()
    optimizer = OPTIMIZERS[kind](model.parameters())
    for step in range(steps):
        model.give_gradients(step)
        optimizer.step()
    return model, optimizer


def connected(servers: FakeServers, kind: str = "sgd", **options: Any) -> tuple[Weights, DenseClient]:
    model = Weights()
    return model, DenseClient(model, OPTIMIZERS[kind](model.parameters()), servers, **options)


@pytest.mark.parametrize("num_ps", [*(pytest.param(number, marks=pytest.mark.slow) for number in (1, 5)), 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_weights_and_state_are_bit_for_bit_those_of_one_process(kind: str, num_ps: int) -> None:
    expected, optimizer = locally(kind, 5)
    servers = FakeServers(num_ps)
    model, client = connected(servers, kind)
    client.join(0)
    for step in range(5):
        client.pull()
        model.give_gradients(step)
        client.push(stamp(step), step=step).result()
    client.pull()
    assert_same(values_of(model), values_of(expected))
    state = client.freeze().gather()
    assert_same(dict(state.weights), values_of(expected))
    wanted = named_state(optimizer, expected)["state"]
    assert state.optimizers["dense"]["state"].keys() == wanted.keys()
    for name, values in wanted.items():
        for key, value in values.items():
            found = state.optimizers["dense"]["state"][name][key]
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(value)), (name, key)


def test_large_weights_are_partitioned_unless_the_rule_needs_them_undivided() -> None:
    _, adam = connected(FakeServers(3), "adam")
    _, shampoo = connected(FakeServers(3), "shampoo")
    _, undivided = connected(FakeServers(3), "adam", partition=False)
    assert [len(each.layout.pieces["large"]) for each in (adam, shampoo, undivided)] == [3, 1, 1]
    assert len(adam.layout.pieces["small"]) == 1


def test_a_gradient_that_is_missing_is_not_one_of_zeros() -> None:
    expected, _ = locally("adamw", 3)
    model, client = connected(FakeServers(2), "adamw")
    client.join(0)
    for step in range(3):
        model.give_gradients(step)
        client.push(stamp(step), step=step)
        client.pull()
    assert torch.equal(model.unused, torch.ones(4))  # weight decay would have moved it
    assert "unused" not in client.freeze().gather().optimizers["dense"]["state"]
    assert_same(values_of(model), values_of(expected))


def test_a_call_that_is_carried_twice_counts_once() -> None:
    expected, _ = locally("adam", 4)
    model, client = connected(FakeServers(3, repeat=True), "adam")
    client.join(0)
    for step in range(4):
        model.give_gradients(step)
        client.push(stamp(step), step=step).result()
        client.pull()
    assert_same(values_of(model), values_of(expected))


def test_a_push_that_is_lost_shows_at_the_next_one() -> None:
    servers = FakeServers(2)
    model, client = connected(servers)
    client.join(0)
    model.give_gradients(0)
    client.push(stamp(0), step=0)
    server, kind, head, body = servers.said[-1]
    with pytest.raises(FailedPreconditionError, match=r"batch 7 names 3 as the push before it.* applied here is 0"):
        servers.carry(
            server,
            kind,
            head.replace(b'"stamp":[0,0', b'"stamp":[0,7').replace(b'"previous":-1', b'"previous":3'),
            body,
            None,
        )


def test_pushes_of_an_earlier_incarnation_are_refused() -> None:
    servers = FakeServers(1)
    model, client = connected(servers)
    client.join(0)
    model.give_gradients(0)
    client.push(stamp(0), step=0).result()
    _, other = connected(servers)
    assert other.join(0).applied == stamp(0)
    model.give_gradients(1)
    with pytest.raises(FailedPreconditionError, match=r"this incarnation \(1\) is over, a later one \(2\) has joined"):
        client.push(stamp(1), step=1).result()


def test_a_worker_joins_with_its_first_push_and_cannot_push_for_another() -> None:
    model, client = connected(FakeServers(1))
    model.give_gradients(0)
    client.push(stamp(0, worker=2), step=0).result()
    with pytest.raises(FailedPreconditionError, match=r"has joined as 2; call join\(0\) first"):
        client.push(stamp(1), step=0)


def test_two_workers_push_without_waiting_for_each_other_and_nothing_is_lost() -> None:
    servers = FakeServers(3)
    one_model, one = connected(servers)
    two_model, two = connected(servers)
    one.join(0)
    two.join(1)
    expected = Weights()
    optimizer = OPTIMIZERS["sgd"](expected.parameters())
    for step in range(6):
        model, client, worker = ((one_model, one, 0), (two_model, two, 1))[step % 2]
        model.give_gradients(step)
        client.push(stamp(step // 2, worker), step=step)
        expected.give_gradients(step)
        for mine, theirs in zip(expected.parameters(), model.parameters(), strict=True):
            mine.grad = theirs.grad
        optimizer.step()
    for model, client in ((one_model, one), (two_model, two)):
        client.pull()
        assert_same(values_of(model), values_of(expected))
    assert [shard.applied() for shard in servers.shards] == [{0: 2, 1: 2}] * 3


def test_a_later_client_pulls_the_existing_values() -> None:
    servers = FakeServers(2)
    first, _ = connected(servers)
    model = Weights(seed=9)
    second = DenseClient(model, OPTIMIZERS["sgd"](model.parameters()), servers)
    second.pull()
    assert_same(values_of(model), values_of(first))


def test_a_later_client_that_differs_is_shown_where() -> None:
    servers = FakeServers(2)
    connected(servers)
    model = Weights(rows=800)
    with pytest.raises(FailedPreconditionError, match=r"weights\.large\.pieces\[0\]\.shape\[0\]: 350 here, 400 given"):
        DenseClient(model, OPTIMIZERS["sgd"](model.parameters()), servers)
    model = Weights()
    with pytest.raises(FailedPreconditionError, match=r"momentum: 0.9 here, 0 given"):
        DenseClient(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01), servers)


def test_learning_rates_may_differ_between_clients_and_pushes() -> None:
    servers = FakeServers(1)
    connected(servers)
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    client = DenseClient(model, optimizer, servers)
    client.join(0)
    before = model.scalar.detach().clone()
    for parameter in model.parameters():
        parameter.grad = None
    model.scalar.grad = torch.tensor(1.0)
    optimizer.param_groups[0].update(lr=0.25, weight_decay=0.0)
    client.push(stamp(0), step=0)
    client.pull()
    assert torch.equal(model.scalar, before - 0.25)


def test_a_gate_that_is_held_lets_nothing_in_until_it_opens() -> None:
    servers = FakeServers(2)
    model, client = connected(servers)
    client.join(0)
    servers.gates[1].is_open = False
    model.give_gradients(0)
    before = values_of(model)
    pending = client.push(stamp(0), step=0)
    assert not pending.done()
    assert [shard.applied() for shard in servers.shards] == [{0: 0}, {}]
    servers.gates[1].is_open = True
    assert pending.result() == 0
    assert [gate.inside for gate in servers.gates] == [0, 0]
    client.pull()
    assert not torch.equal(model.large, before["large"])


def test_a_worker_that_died_between_two_servers_resumes_after_the_server_that_lags_most() -> None:
    servers = FakeServers(2)
    model, client = connected(servers)
    client.join(0)
    model.give_gradients(0)
    client.push(stamp(0), step=0).result()
    servers.gates[1].is_open = False
    model.give_gradients(1)
    client.push(stamp(1), step=1)
    servers.gates[1].is_open = True
    again_model, again = connected(servers)
    session = again.join(0)
    assert (session.applied, session.next_seq) == (stamp(0), 2)
    again_model.give_gradients(1)
    again.push(stamp(1), step=1).result()
    assert [shard.applied() for shard in servers.shards] == [{0: 1}, {0: 1}]


def test_what_is_pulled_lies_in_the_parameters_own_memory() -> None:
    model, client = connected(FakeServers(3))
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    client.join(0)
    model.give_gradients(0)
    client.push(stamp(0), step=0)
    assert client.pull() == 0
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == before


def test_parameters_that_were_moved_are_followed() -> None:
    model, client = connected(FakeServers(1))
    client.join(0)
    model.small.data = model.small.data.clone()
    model.large.data = model.large.data.t().contiguous().t()  # other strides: it is copied into
    model.give_gradients(0)
    client.push(stamp(0), step=0)
    client.pull()
    expected, _ = locally("sgd", 1)
    assert_same(values_of(model), values_of(expected))


def test_values_fetched_concurrently_with_a_step_show_when_they_are_assigned() -> None:
    model, client = connected(FakeServers(3))
    client.join(0)
    before = values_of(model)
    client.fetch()
    model.give_gradients(0)
    client.push(stamp(0), step=0)
    assert client.assign() == -1  # what was fetched before the push has not seen it
    assert_same(values_of(model), before)
    client.fetch()
    assert_same(values_of(model), before)
    assert client.assign() == 0
    assert client.assign() is None
    expected, _ = locally("sgd", 1)
    assert_same(values_of(model), values_of(expected))


@pytest.mark.parametrize(
    ("saved_by", "restored_by"),
    [pytest.param(1, 3, marks=pytest.mark.slow), pytest.param(3, 1, marks=pytest.mark.slow), (5, 2)],
)
@pytest.mark.parametrize("kind", ["adam", "adamom", "shampoo"])
def test_a_state_resumes_bit_for_bit_on_another_number_of_servers(kind: str, saved_by: int, restored_by: int) -> None:
    model, client = connected(FakeServers(saved_by), kind)
    client.join(0)
    for step in range(3):
        model.give_gradients(step)
        client.push(stamp(step), step=step)
        client.pull()
    state = client.freeze().gather()
    other = Weights(seed=5)
    servers = FakeServers(restored_by)
    second = DenseClient(other, OPTIMIZERS[kind](other.parameters()), servers)
    second.scatter(state)
    assert second.join(0).applied == stamp(2)
    for step in range(3, 5):
        other.give_gradients(step)
        second.push(stamp(step), step=step)
        second.pull()
    expected, _ = locally(kind, 5)
    assert_same(values_of(other), values_of(expected))


def test_a_frozen_state_stays_unchanged_while_training_continues() -> None:
    servers = FakeServers(2)
    model, client = connected(servers, "adam")
    client.join(0)
    model.give_gradients(0)
    client.push(stamp(0), step=0)
    client.pull()
    expected, frozen = values_of(model), client.freeze()
    model.give_gradients(1)
    client.push(stamp(1), step=1)
    state = frozen.gather()
    assert_same(dict(state.weights), expected)
    assert state.applied == {0: stamp(0)}
    with pytest.raises(FailedPreconditionError, match="released, or a later one took its place"):
        frozen.gather()


def test_a_later_freeze_takes_the_place_of_one_that_was_not_released() -> None:
    model, client = connected(FakeServers(2))
    first, second = client.freeze(), client.freeze()
    with pytest.raises(FailedPreconditionError, match="a later one took its place"):
        first.gather()
    assert_same(dict(second.gather().weights), values_of(model))


def test_a_state_of_owners_that_differ_goes_back_to_as_many_owners_only() -> None:
    servers = FakeServers(2)
    model, client = connected(servers, "adam")
    client.join(0)
    for seq in range(2):
        servers.gates[1].is_open = seq == 0
        model.give_gradients(seq)
        client.push(stamp(seq), step=seq)
    frozen = client.freeze()
    state = frozen.gather()
    assert not state.is_level
    assert state.applied == {0: stamp(0)}
    _, other = connected(FakeServers(3), "adam")
    with pytest.raises(FailedPreconditionError, match="restore it into 2 servers, not 3"):
        other.scatter(state)
    same = FakeServers(2)
    again_model, again = connected(same, "adam")
    again.scatter(state)
    assert [shard.applied() for shard in same.shards] == [{0: 1}, {0: 0}]
    assert again.join(0).applied == stamp(0)
    again_model.give_gradients(0)
    for mine, theirs in zip(again_model.parameters(), model.parameters(), strict=True):
        mine.grad = theirs.grad
    again.push(stamp(1), step=1).result()
    again.pull()
    servers.gates[1].is_open = True
    client.flush()
    client.pull()
    assert_same(values_of(again_model), values_of(model))


def test_a_state_of_another_model_is_refused_and_changes_nothing() -> None:
    model, client = connected(FakeServers(2))
    linear = nn.Linear(2, 2)
    state = DenseClient(linear, torch.optim.SGD(linear.parameters(), lr=0.1), FakeServers(2)).freeze().gather()
    before = values_of(model)
    with pytest.raises(FailedPreconditionError, match="got a state of"):
        client.scatter(state)
    client.pull()
    assert_same(values_of(model), before)


def test_workers_have_to_join_again_after_a_state_was_put_back() -> None:
    servers = FakeServers(1)
    _, client = connected(servers)
    other_model, other = connected(servers)
    other.join(1)
    client.scatter(client.freeze().gather())
    other_model.give_gradients(0)
    with pytest.raises(FailedPreconditionError, match="put back to a saved state; join again"):
        other.push(stamp(0, worker=1), step=0).result()


def test_an_integer_parameter_is_refused_with_the_reason() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    with pytest.raises(InvalidArgumentError, match=r"parameter 'count'.*got int64"):
        DenseClient({"count": weight}, torch.optim.SGD([weight], lr=0.1), FakeServers(1))


def test_a_parameter_that_only_the_optimizer_has_is_rejected() -> None:
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(InvalidArgumentError, match=r"shape \(3,\) that is not among those of the model"):
        DenseClient({}, torch.optim.SGD([weight], lr=0.1), FakeServers(1))


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    made = {name: torch.optim.SGD([weight], lr=0.1) for name in ("one", "two")}
    with pytest.raises(InvalidArgumentError, match="belongs to the optimizers 'one' and 'two'"):
        DenseClient({"weight": weight}, made, FakeServers(1))


def test_a_sparse_gradient_is_refused_before_anything_is_sent() -> None:
    module = nn.Embedding(4, 2, sparse=True)
    client = DenseClient(module, torch.optim.SGD(module.parameters(), lr=0.1), FakeServers(1))
    client.join(0)
    module(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidArgumentError, match="sparse gradient"):
        client.push(stamp(0), step=0)


def test_layouts_for_another_number_of_servers_are_refused() -> None:
    servers = FakeServers(2)
    servers.shards[:] = servers.shards[:1]
    with pytest.raises(FailedPreconditionError, match="one of 2 servers, got a layout for 1"):
        connected(servers)
