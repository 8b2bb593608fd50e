"""The entry of an export with its shards answers as the export in one piece."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from monolith.serving import Predictor, RemotePredictor, export, serve_shard
from monolith.testing import ExampleTask
from monolith.train import Trainer


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model, in one piece and for three shards."""
    folder = tmp_path_factory.mktemp("exports")
    trainer = Trainer(ExampleTask())
    trainer.train(steps=20)
    batch = next(iter(trainer.task.input_fn("train")))
    export(trainer, str(folder / "whole"), example=batch)
    export(trainer, str(folder / "parts"), example=batch, shards=3)
    return folder


def test_an_entry_with_three_shards_answers_as_the_model_in_one_piece(exports: Path) -> None:
    users, items = torch.arange(200), torch.arange(200).flip(0)
    with ExitStack() as closing:
        shards = [
            closing.enter_context(serve_shard("ExampleTask", f"{index}/3", export=str(exports / "parts")))
            for index in range(3)
        ]
        whole = closing.enter_context(Predictor(str(exports / "whole")))
        addresses = [[shard.server.address] for shard in shards]
        asking = RemotePredictor(str(exports / "parts"), addresses, max_rpc_deadline_millis=60_000.0)
        remote = closing.enter_context(asking)
        for begin in (0, 50, 150):
            inputs = {"user": users[begin : begin + 50], "item": items[begin : begin + 50]}
            expected, found = whole.predict(inputs), remote.predict(inputs)
            assert expected.outputs.keys() == found.outputs.keys()
            assert all(torch.equal(found.outputs[name], expected.outputs[name]) for name in expected.outputs)
        rows = [shard.server._tables.num_rows for shard in shards]
        assert sum(rows) == whole.num_rows
        assert min(rows) > 0
        with pytest.raises(InvalidArgumentError, match="is missing"):
            remote.predict({"user": users})
        with pytest.raises(InvalidArgumentError, match="columns by name expected, got bytes"):
            remote.predict(b"123")
        with pytest.raises(NotFoundError, match="has no signature 'other'"):
            remote.predict({"user": users, "item": items}, "other")
        shards[1].server.close(0)
        with pytest.raises(UnavailableError, match="shard at"):
            remote.predict({"user": users, "item": items})
        remote.close()
        with pytest.raises(UnavailableError, match="it is closed"):
            remote.predict({"user": users, "item": items})


def test_another_number_of_shards_than_the_export_is_for_is_refused(exports: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="it is for 3 shards, got the addresses of 1"):
        RemotePredictor(str(exports / "parts"), [["127.0.0.1:1"]])
    with pytest.raises(FailedPreconditionError, match="it is for 3 shards, and this is one of 2"):
        serve_shard("ExampleTask", "0/2", export=str(exports / "parts"))
