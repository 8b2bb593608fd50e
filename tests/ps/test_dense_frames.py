"""Dense weights over real sockets: the same bits, and calls that wait for an open gate."""

from __future__ import annotations

import threading

import pytest
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ps.dense.client import DenseClient
from monolith.ps.dense.wire import WORDS
from monolith.tables.batch import BatchStamp
from ps.dense_frames import SocketServers
from ps.dense_models import OPTIMIZERS, Weights, assert_same, values_of


def stamp(seq: int, worker: int = 0) -> BatchStamp:
    return BatchStamp(worker=worker, seq=seq)


def connected(servers: SocketServers, kind: str = "sgd") -> tuple[Weights, DenseClient]:
    model = Weights()
    return model, DenseClient(model, OPTIMIZERS[kind](model.parameters()), servers)


@pytest.mark.parametrize("num_ps", [1, 3])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamom"])
def test_weights_over_sockets_are_bit_for_bit_those_of_one_process(kind: str, num_ps: int) -> None:
    expected = Weights()
    optimizer = OPTIMIZERS[kind](expected.parameters())
    with SocketServers(num_ps) as servers:
        model, client = connected(servers, kind)
        with client:
            client.join(0)
            for step in range(4):
                client.pull()
                model.give_gradients(step)
                client.push(stamp(step), step=step)
                expected.give_gradients(step)
                optimizer.step()
            assert client.pull() == 3
            assert_same(values_of(model), values_of(expected))
            frozen = client.freeze()
            assert_same(dict(frozen.gather().weights), values_of(expected))


def test_pulls_and_pushes_may_be_in_flight_together() -> None:
    with SocketServers(2) as servers:
        model, client = connected(servers)
        with client:
            client.join(0)
            seen = []
            for step in range(20):
                client.fetch()
                model.give_gradients(step)
                client.push(stamp(step), step=step)
                seen.append(client.assign())
            assert seen == list(range(-1, 19))
            assert client.flush() == 19
            assert [shard.applied() for shard in servers.shards] == [{0: 19}] * 2


def test_a_push_waits_while_the_gate_is_held_and_passes_when_it_opens() -> None:
    with SocketServers(2) as servers:
        model, client = connected(servers)
        with client:
            client.join(0)
            model.give_gradients(0)
            with servers.held():
                pending = client.push(stamp(0), step=0)
                state = client.freeze().gather()
                assert state.applied == {}
                assert not pending.done()
            assert pending.result(timeout_seconds=60.0) == 0
            assert client.freeze().gather().applied == {0: stamp(0)}


def test_workers_at_the_same_time_lose_nothing() -> None:
    steps, workers = 25, 4
    with SocketServers(3) as servers:
        first, _ = connected(servers)
        before = values_of(first)

        def work(worker: int) -> None:
            model = Weights(rows=700)
            optimizer = OPTIMIZERS["sgd"](model.parameters())
            with DenseClient(model, optimizer, servers) as client:
                client.join(worker)
                optimizer.param_groups[0].update(lr=1.0, momentum=0.0, weight_decay=0.0)
                for step in range(steps):
                    client.fetch()
                    for parameter in model.parameters():
                        parameter.grad = torch.ones_like(parameter)
                    client.push(stamp(step, worker), step=step)
                    client.assign()
                client.flush()

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        model, client = connected(servers)
        client.pull()
        expected = before["large"].clone()
        for _ in range(steps * workers):
            expected.sub_(1.0)
        assert torch.equal(model.large, expected)
        assert [shard.applied() for shard in servers.shards] == [dict.fromkeys(range(workers), steps - 1)] * 3


def test_errors_of_a_server_keep_their_class() -> None:
    with SocketServers(1) as servers:
        connected(servers)
        other = Weights(rows=3)
        with pytest.raises(FailedPreconditionError, match=r"weights\.large"):
            DenseClient(other, OPTIMIZERS["sgd"](other.parameters()), servers)
        frames = servers.open_frames(WORDS)
        with pytest.raises(InvalidArgumentError, match="no call of kind 99"):
            frames.begin(0, 99, b"", [], None, 10.0).wait()
        frames.close()


def test_a_state_goes_back_over_sockets() -> None:
    with SocketServers(3) as servers, SocketServers(2) as others:
        model, client = connected(servers, "adam")
        client.join(0)
        model.give_gradients(0)
        client.push(stamp(0), step=0)
        client.pull()
        state = client.freeze().gather()
        other, second = connected(others, "adam")
        second.scatter(state)
        assert_same(values_of(other), values_of(model))
        assert second.join(0).applied == stamp(0)
