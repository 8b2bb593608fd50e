"""The entry of an export with its shards answers as the export in one piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from monolith.online import DeltaPublisher, Follower
from monolith.rpc.credentials import ServerCredentials
from monolith.serving import Predictor, RemotePredictor, ServedShard, export, serve_shard
from monolith.serving.shards.row_versions import DenseSet, DenseSets, has_rows, merged_versions
from monolith.tables import LocalStore, Segment, TableConfig
from monolith.tables.bucket_owners import owned_ranges
from monolith.train import Trainer
from serving.small_models import encoded, make_batch, trained

LONG = 60_000.0
WAIT = 60.0


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return trained()


@pytest.fixture(scope="module")
def exports(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model, in one piece and for three shards."""
    folder = tmp_path_factory.mktemp("exports")
    export(trainer, str(folder / "whole"), example=make_batch(0), version=1)
    export(trainer, str(folder / "parts"), example=make_batch(0), version=1, shards=3)
    return folder


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, path: Path, **options: Any) -> tuple[list[ServedShard], list[list[str]]]:
    shards = [
        stack.enter_context(serve_shard("Ranker", f"{index}/3", export=str(path), **options)) for index in range(3)
    ]
    return shards, [[shard.server.address] for shard in shards]


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to pass")


def test_an_entry_with_three_shards_answers_as_the_model_in_one_piece(exports: Path, stack: ExitStack) -> None:
    shards, addresses = start(stack, exports / "parts")
    whole = stack.enter_context(Predictor(str(exports / "whole")))
    asking = RemotePredictor(str(exports / "parts"), addresses, max_rpc_deadline_millis=LONG)
    remote = stack.enter_context(asking)
    for number, size in ((3, 1), (4, 7), (5, 33)):
        batch = make_batch(number, size)
        requests: list[Any] = [batch, *({form: samples} for form, samples in encoded(batch).items())]
        requests.append(encoded(batch)["example_batch"][0])
        for inputs in requests:
            expected, found = whole.predict(inputs), remote.predict(inputs)
            assert expected.outputs.keys() == found.outputs.keys()
            assert all(torch.equal(found.outputs[name], expected.outputs[name]) for name in expected.outputs)
            assert found.num_ids == expected.num_ids
    assert remote.version == (1, -1, {})
    assert (remote.name, remote.num_rows, remote.staleness) == ("Ranker", 0, None)
    assert remote.memory_bytes > 0
    rows = [shard.num_rows for shard in shards]
    assert sum(rows) == whole.num_rows
    assert min(rows) > 0


def test_wrong_requests_and_lost_shards_are_reported(exports: Path, stack: ExitStack) -> None:
    shards, addresses = start(stack, exports / "parts")
    asking = RemotePredictor(str(exports / "parts"), addresses, max_rpc_deadline_millis=LONG)
    remote = stack.enter_context(asking)
    wait_until(lambda: remote.is_ready)
    batch = make_batch(3)
    with pytest.raises(InvalidArgumentError, match="is missing"):
        remote.predict({"user": batch["user"]})
    with pytest.raises(InvalidArgumentError, match="samples as bytes expected"):
        remote.predict({"examples": []})
    with pytest.raises(InvalidArgumentError, match="not an ExampleBatch"):
        remote.predict(b"123")
    with pytest.raises(NotFoundError, match="has no signature 'other'"):
        remote.predict(batch, "other")
    shards[1].close(0)
    with pytest.raises(UnavailableError, match="shard at"):
        remote.predict(batch)
    wait_until(lambda: "shard 1 of Ranker: shard at" in str(remote.why_not_ready))
    remote.close()
    assert remote.why_not_ready == "it is closed"
    with pytest.raises(UnavailableError, match="it is closed"):
        remote.predict(batch)


def test_what_shards_reject_is_no_fault_of_the_caller(exports: Path, stack: ExitStack) -> None:
    _, guarded = start(stack, exports / "parts", credentials=ServerCredentials(token="sesame"))  # noqa: S106 - of this test
    _, addresses = start(stack, exports / "parts")
    for given, sentence in (
        (guarded, "the rows of 'Ranker' cannot be had: .*the token is wrong or missing"),
        (addresses[1:] + addresses[:1], "the rows of 'Ranker' cannot be had: .*no model 'Ranker:ps_0'"),
    ):
        asking = RemotePredictor(str(exports / "parts"), given, max_rpc_deadline_millis=LONG)
        remote = stack.enter_context(asking)
        with pytest.raises(UnavailableError, match=sentence):
            remote.predict(make_batch(3))


def test_another_number_of_shards_than_the_export_is_for_is_refused(exports: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="it is for 3 shards, got the addresses of 1"):
        RemotePredictor(str(exports / "parts"), [["127.0.0.1:1"]])
    with pytest.raises(FailedPreconditionError, match="it is for 3 shards, and this is one of 2"):
        serve_shard("Ranker", "0/2", export=str(exports / "parts"))


@pytest.mark.slow
def test_a_newer_export_is_activated_when_all_shards_have_its_rows_and_no_call_fails(
    tmp_path: Path, stack: ExitStack
) -> None:
    trainer, batch, path = trained(2), make_batch(5), tmp_path / "parts"
    export(trainer, str(path), example=batch, version=1, shards=3)
    first = trainer.predict(batch)["score"]
    shards, addresses = start(stack, path)
    asking = RemotePredictor(str(path), addresses, max_rpc_deadline_millis=LONG)
    remote = stack.enter_context(asking)
    stop, failures, seen = threading.Event(), [], set()

    def ask() -> None:
        while not stop.wait(0.01):
            try:
                answer = remote.predict(batch)
                seen.add((answer.version.export, bytes(answer.outputs["score"].numpy())))
            except Exception as error:  # noqa: BLE001 - each is one too many
                failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    trainer.train(steps=3)
    export(trainer, str(path), example=batch, version=2, shards=3)
    second = trainer.predict(batch)["score"]
    wait_until(lambda: remote.version.export == 2)
    wait_until(lambda: (2, bytes(second.numpy())) in seen)
    stop.set()
    thread.join(WAIT)
    assert failures == []
    assert seen <= {(1, bytes(first.numpy())), (2, bytes(second.numpy()))}
    assert [shard.version.export for shard in shards] == [2] * 3
    # Weights alone go with the rows that are there.
    with torch.no_grad():
        trainer.state.model["top"][0].weight.mul_(2)  # type: ignore[index, union-attr]
    export(trainer, str(path), example=batch, version=3, shards=3, dense_only=True)
    wait_until(lambda: remote.version.export == 3)
    assert torch.equal(remote.predict(batch).outputs["score"], trainer.predict(batch)["score"])


@pytest.mark.slow
def test_dense_weights_of_the_log_wait_for_the_rows_that_they_need(tmp_path: Path, stack: ExitStack) -> None:
    trainer, batch, path, log = trained(2), make_batch(7), tmp_path / "parts", str(tmp_path / "log")
    export(trainer, str(path), example=batch, version=1, shards=3)
    state: Any = trainer.state

    def dense() -> dict[str, torch.Tensor]:
        return {name: weight.data for name, weight in state.model.named_parameters()}

    publisher = DeltaPublisher(state.stores, log, dense=dense, dense_interval=0.001)
    stack.callback(publisher.close)
    publisher.publish()
    shards, addresses = start(stack, path, follow=log)
    asking = RemotePredictor(str(path), addresses, follow=log, max_rpc_deadline_millis=LONG)
    remote = stack.enter_context(asking)
    wait_until(lambda: remote.is_ready)
    before = remote.predict(batch)
    assert torch.equal(before.outputs["score"], trainer.predict(batch)["score"])
    assert before.version.dense >= 0
    assert before.version.sparse
    # One shard stands still: neither weights nor anything that needs its rows goes on.
    shards[1].follower.pause()  # type: ignore[union-attr]
    with torch.no_grad():
        state.model["top"][0].weight.add_(0.25)
    ids = batch["item"].reshape(-1).unique()  # type: ignore[union-attr]
    state.embeddings["emb"].assign("item", ids, torch.full((len(ids), 4), 0.5))
    newest = remote._follower.dense_number  # type: ignore[union-attr]
    publisher.publish()
    wait_until(lambda: remote._follower.dense_number > newest)  # type: ignore[union-attr]
    assert remote.predict(batch).version.dense == before.version.dense
    shards[1].follower.resume()  # type: ignore[union-attr]
    wait_until(lambda: remote.predict(batch).version.dense > before.version.dense)
    after = remote.predict(batch)
    assert all(after.version.sparse[part] >= number for part, number in before.version.sparse.items())
    assert torch.equal(after.outputs["score"], trainer.predict(batch)["score"])
    assert remote.staleness is None or remote.staleness.now >= 0


def test_a_follower_of_weights_alone_takes_no_stores(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="stores and rows_elsewhere exclude each other"):
        Follower(LocalStore({"item": TableConfig([Segment(2)])}), str(tmp_path), rows_elsewhere=True)


@pytest.mark.slow
def test_the_log_of_another_model_leaves_the_weights_of_the_export(tmp_path: Path, stack: ExitStack) -> None:
    trainer, batch, path, log = trained(2), make_batch(7), tmp_path / "parts", str(tmp_path / "log")
    export(trainer, str(path), example=batch, version=1, shards=3)
    state: Any = trainer.state
    publisher = DeltaPublisher(state.stores, log, dense=lambda: {"top.0.weight": torch.zeros(3)})
    publisher.publish()
    publisher.close()
    _, addresses = start(stack, path, follow=log)
    asking = RemotePredictor(str(path), addresses, follow=log, max_rpc_deadline_millis=LONG)
    remote = stack.enter_context(asking)
    wait_until(lambda: "log of another model" in str(remote.why_not_ready))
    assert remote.predict(batch).version.dense == -1


def test_versions_of_rows_are_those_that_all_shards_have() -> None:
    ranges = owned_ranges(2)
    both, first = "m.0000-1024", "m.0000-0512"
    assert merged_versions({0: {both: 7, first: 3, "dense": 9}, 1: {both: 5}}, ranges) == {both: 5, first: 3}
    assert merged_versions({0: {both: 7}, 1: {}}, ranges) == {}
    assert has_rows({both: 5, first: 3}, {0: {both: 7, first: 3}, 1: {both: 5}}, ranges)
    assert not has_rows({both: 6}, {0: {both: 7}, 1: {both: 5}}, ranges)
    assert not has_rows({first: 3}, {0: {both: 7}}, ranges)
    assert has_rows({first: 3}, {1: {}}, ranges), "it has none of these buckets"


def test_weights_that_shards_stand_still_at_are_not_let_go() -> None:
    sets, ranges, part = DenseSets(), owned_ranges(1), "m.0000-1024"
    for number in range(5):
        sets.add(DenseSet({}, number, {part: number}))
    for _ in range(2):
        chosen = sets.choose({0: {part: 3}}, ranges)
        assert chosen is not None
        assert chosen.number == 3
        for number in range(5, 105):
            sets.add(DenseSet({}, number, {part: number}))
    assert len(sets.numbers) <= 16
    assert sets.choose({0: {part: -1}}, ranges) is None
    assert max(sets.numbers) == 104
