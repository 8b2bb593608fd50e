"""A predictor that follows a delta log: answers name versions that they keep, whatever happens to the log."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from monolith.deltalog import DeltaLog
from monolith.export.writer import ExportConfig
from monolith.online import DeltaPublisher
from monolith.serving import Predictor
from serving.small_models import make_batch, trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to pass")


def publisher_of(state: Any, log: Path) -> DeltaPublisher:
    def dense() -> dict[str, torch.Tensor]:
        return {name: weight.data for name, weight in state.model.named_parameters()}

    return DeltaPublisher(state.stores, str(log), dense=dense, dense_interval=0.001)


def test_rows_and_weights_of_the_log_are_served_with_their_version(tmp_path: Path) -> None:
    trainer, batch = trained(2), make_batch(7)
    trainer.export(str(tmp_path / "model"), example=batch, options=ExportConfig(version=3))
    state = trainer.state
    assert state is not None
    log = tmp_path / "log"
    publisher = publisher_of(state, log)
    publisher.publish()
    with Predictor(str(tmp_path / "model"), follow=str(log)) as predictor:
        predictor.wait_ready(WAIT)
        before = predictor.version
        assert before.export == 3
        assert before.dense >= 0
        assert before.sparse
        # What is trained next reaches the answers: rows by ids that were there, weights of the top.
        with torch.no_grad():
            state.model["top"][0].weight.add_(0.25)  # type: ignore[index]
        emb = state.embeddings["emb"]
        ids = batch["item"].reshape(-1).unique()  # type: ignore[union-attr]
        emb.assign("item", ids, torch.full((len(ids), 4), 0.5))
        publisher.publish()
        wait_until(lambda: predictor.version.dense > before.dense)
        answer = predictor.predict(batch)
        assert answer.version.dense > before.dense
        assert all(answer.version.sparse[part] >= number for part, number in before.sparse.items())
        state.model.eval()  # type: ignore[union-attr]
        buffers = trainer.predict(batch)
        assert torch.equal(answer.outputs["score"], buffers["score"])
        assert torch.equal(answer.outputs["vector"], buffers["vector"])
        assert predictor.lag is not None
        publisher.close()
        # A log that vanishes: it serves on, is not ready, and says why.
        shutil.rmtree(log)
        wait_until(lambda: not predictor.is_ready)
        assert "the delta log cannot be followed" in str(predictor.why_not_ready)
        assert torch.equal(predictor.predict(batch).outputs["score"], answer.outputs["score"])


@pytest.mark.slow
def test_a_log_that_does_not_exist_yet_is_followed_later(tmp_path: Path) -> None:
    trainer, batch = trained(2), make_batch(7)
    place = trainer.export(str(tmp_path / "model"), example=batch)
    with Predictor(place, follow=str(tmp_path / "log")) as predictor:
        wait_until(lambda: "cannot be followed" in str(predictor.why_not_ready))
        assert predictor.predict(batch).version.sparse == {}
        publisher = publisher_of(trainer.state, tmp_path / "log")
        publisher.publish()
        predictor.wait_ready(WAIT)
        publisher.close()
        assert torch.equal(predictor.predict(batch).outputs["score"], trainer.predict(batch)["score"])


@pytest.mark.slow
def test_the_log_of_another_model_is_refused_and_the_export_served(tmp_path: Path) -> None:
    trainer, batch = trained(2), make_batch(7)
    place = trainer.export(str(tmp_path / "model"), example=batch)
    other = trained(2)
    assert other.state is not None

    def wrong() -> dict[str, torch.Tensor]:
        return {"top.0.weight": torch.zeros(3)}

    publisher = DeltaPublisher(other.state.stores, str(tmp_path / "log"), dense=wrong)
    publisher.publish()
    publisher.close()
    with Predictor(place, follow=str(tmp_path / "log")) as predictor:
        wait_until(lambda: "log of another model" in str(predictor.why_not_ready))
        assert predictor.predict(batch).version.dense == -1


@pytest.mark.slow
def test_a_base_that_cannot_be_read_leaves_the_rows_of_the_export(tmp_path: Path) -> None:
    trainer, batch = trained(2), make_batch(7)
    place = trainer.export(str(tmp_path / "model"), example=batch)
    wanted = trainer.predict(batch)["score"]
    assert trainer.state is not None
    log = DeltaLog(str(tmp_path / "log"))
    publisher = publisher_of(trainer.state, tmp_path / "log")
    publisher.publish()
    log.save_base(trainer.state.stores, name="base", numbers=publisher.numbers)
    publisher.close()
    for folder in (tmp_path / "log" / "bases").glob("*/*"):
        shutil.rmtree(folder)
    with Predictor(place, follow=log) as predictor:
        assert torch.equal(predictor.predict(batch).outputs["score"], wanted)


def test_what_a_base_has_is_served_from_the_first_answer_on(tmp_path: Path) -> None:
    trainer, batch = trained(2), make_batch(7)
    place = trainer.export(str(tmp_path / "model"), example=batch)
    state = trainer.state
    assert state is not None
    emb = state.embeddings["emb"]
    ids = batch["item"].reshape(-1).unique()  # type: ignore[union-attr]
    emb.assign("item", ids, torch.full((len(ids), 4), 0.5))
    log = DeltaLog(str(tmp_path / "log"))
    publisher = publisher_of(state, tmp_path / "log")
    publisher.publish()
    log.save_base(state.stores, name="base", numbers=publisher.numbers)
    with Predictor(place, follow=log) as predictor:
        answer = predictor.predict(batch)
        assert set(answer.version.sparse) == publisher.numbers.keys() - {"dense"}
        assert torch.equal(answer.outputs["vector"], trainer.predict(batch)["vector"])
    publisher.close()


@pytest.mark.slow
def test_weights_of_the_log_stay_when_an_export_of_weights_alone_is_loaded(tmp_path: Path) -> None:
    trainer, batch = trained(2), make_batch(7)
    trainer.export(str(tmp_path / "model"), example=batch, options=ExportConfig(version=3))
    state = trainer.state
    assert state is not None
    with torch.no_grad():
        state.model["top"][0].weight.add_(0.25)  # type: ignore[index]
    publisher = publisher_of(state, tmp_path / "log")
    publisher.publish()
    publisher.close()
    wanted = trainer.predict(batch)["score"]
    with Predictor(str(tmp_path / "model"), follow=str(tmp_path / "log")) as predictor:
        predictor.wait_ready(WAIT)
        wait_until(lambda: predictor.version.dense >= 0)
        number = predictor.version.dense
        with torch.no_grad():
            state.model["top"][0].weight.sub_(0.25)  # type: ignore[index]
        options = ExportConfig(version=4, dense_only=True)
        trainer.export(str(tmp_path / "model"), example=batch, options=options)
        wait_until(lambda: predictor.version.export == 4)
        answer = predictor.predict(batch)
        assert answer.version.dense == number, "the version of an answer does not go back"
        assert torch.equal(answer.outputs["score"], wanted)
