"""Dense weights on whole parameter servers: found through their control, held for a cut, under their token."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.checkpoint import Saver, TrainState
from monolith.errors import InvalidArgumentError, OpError
from monolith.nn import Embeddings
from monolith.ps import DenseClient, PsCluster, PsServer, PsStore
from monolith.tables.batch import BatchStamp
from monolith.testing import ExampleTask
from monolith.train import Session, SingleProcess
from ps.dense_models import OPTIMIZERS, Weights, assert_same, values_of


@contextmanager
def started(num_ps: int, **options: Any) -> Iterator[PsCluster]:
    with ExitStack() as stack:
        servers = [stack.enter_context(PsServer(index, num_ps=num_ps, **options)) for index in range(num_ps)]
        addresses = [server.address for server in servers]
        yield stack.enter_context(PsCluster(addresses, token=options.get("token")))


def test_a_state_saved_during_pushes_of_another_worker_resumes_in_one_process(tmp_path: Path) -> None:
    with started(3) as cluster, Saver(tmp_path) as saver:
        model, other_model = Weights(), Weights()
        state = TrainState(model=model, optimizers={"dense": OPTIMIZERS["adam"](model.parameters())})
        client = DenseClient(model, state.optimizers, cluster)
        other = DenseClient(other_model, {"dense": OPTIMIZERS["adam"](other_model.parameters())}, cluster)
        state.dense = client
        pushed, ended = threading.Event(), threading.Event()

        def push() -> None:
            seq = 0
            while not ended.is_set():
                other_model.give_gradients(seq)
                other.push(BatchStamp(worker=1, seq=seq), step=seq).result()
                pushed.set()
                seq += 1

        thread = threading.Thread(target=push)
        thread.start()
        try:
            assert pushed.wait(60.0)
            saver.save(state, background=False)
            # Pushes go on behind the cut.
            before = other.freeze().gather().applied[1].seq
            while other.freeze().gather().applied[1].seq == before:
                pass
        finally:
            ended.set()
            thread.join()
        restored_model = Weights()
        restored = TrainState(
            model=restored_model, optimizers={"dense": OPTIMIZERS["adam"](restored_model.parameters())}
        )
        saver.restore(restored)
        # Every weight has learned as often: all servers were cut at the same batch.
        steps = restored.applied[1].seq + 1
        found = restored.optimizers["dense"].state
        assert {int(values["step"]) for values in found.values() if values} == {steps}
        expected = Weights()
        optimizer = OPTIMIZERS["adam"](expected.parameters())
        for seq in range(steps):
            _give_same_gradients(expected, seq)
            optimizer.step()
        assert_same(values_of(restored_model), values_of(expected))


def _give_same_gradients(model: Weights, seq: int) -> None:
    """As a worker does who never pulls."""
    first = Weights()
    first.give_gradients(seq)
    for mine, theirs in zip(model.parameters(), first.parameters(), strict=True):
        mine.grad = theirs.grad


def test_a_token_is_needed() -> None:
    model = Weights()
    with started(1, token="right") as cluster:  # noqa: S106 - of this test
        cluster.token = "wrong"  # noqa: S105 - of this test
        with pytest.raises(OpError, match="token"):
            DenseClient(model, OPTIMIZERS["sgd"](model.parameters()), cluster, timeout_seconds=20.0)


def test_a_module_that_a_server_cannot_import_shows_at_its_start() -> None:
    with pytest.raises(InvalidArgumentError, match="module 'no_such_module'"):
        PsServer(0, num_ps=1, modules=("no_such_module",))


def test_a_server_reports_that_it_stores_dense_weights() -> None:
    model = Weights()
    with PsServer(0, num_ps=1) as server, PsCluster([server.address]) as cluster:
        shard = server.dense
        assert shard.capture(-1) is None
        with DenseClient(model, OPTIMIZERS["sgd"](model.parameters()), cluster) as client:
            client.join(0)
            model.give_gradients(0)
            client.push(BatchStamp(worker=0, seq=0), step=0).result()
            with client.held():
                frozen = client.freeze()
            assert torch.equal(frozen.gather().weights["small"], client.read("small"))
        assert shard.capture(-1) is not None
        assert shard.applied() == {0: 0}


def test_rows_and_dense_weights_of_servers_are_cut_together(tmp_path: Path) -> None:
    def run(cluster: PsCluster | None, saver: Saver, steps: int) -> dict[str, torch.Tensor]:
        class Task(ExampleTask):
            def build(self) -> None:
                super().build()
                if cluster is not None:
                    self.emb = Embeddings(self.emb.slots, store=lambda configs: PsStore(configs, servers=cluster))

            def optimizers(self, model: torch.nn.Module) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.top.parameters(), lr=0.01)

        task = Task()
        with (
            Session(task, strategy=SingleProcess(cluster), deterministic=True, restore=saver.restore) as session,
            session.feed(task.input_fn("train")) as feed,
        ):
            for _ in range(steps):
                session.run_next(feed)
            saver.save(session.state, background=False)
            rows = task.emb.lookup("user", torch.arange(50))
            weights = {} if session.state.dense is None else dict(session.state.dense.freeze().gather().weights)
            return {"rows": rows, "top.weight": task.top.weight.detach().clone(), **weights}

    with Saver(tmp_path / "here") as saver:
        expected = run(None, saver, 6)
    with Saver(tmp_path / "there") as saver:
        for num_ps in (3, 2):
            with started(num_ps) as cluster:
                run(cluster, saver, 2)
        found = run(None, saver, 2)
    assert torch.equal(found["rows"], expected["rows"])
    assert torch.equal(found["top.weight"], expected["top.weight"])


def test_a_restarted_server_receives_the_weights_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who said them first is not telling the others any more, and is not waited for."""
    monkeypatch.setattr("monolith.ps.dense.client._FIRST_CLIENT_SECONDS", 0.2)
    models = [Weights(), Weights()]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    with ExitStack() as ended:
        first = ended.enter_context(PsServer(0, 2))
        second = PsServer(1, 2)
        cluster = ended.enter_context(PsCluster([first.address, second.address]))
        ended.enter_context(DenseClient(models[0], optimizers[0], cluster))
        second.close(0)
        cluster.move(1, ended.enter_context(PsServer(1, 2)).address)
        time.sleep(0.3)
        monkeypatch.setattr("monolith.ps.dense.client.time.sleep", lambda _: pytest.fail("it waited"))
        late = ended.enter_context(DenseClient(models[1], optimizers[1], cluster))
        late.pull()
