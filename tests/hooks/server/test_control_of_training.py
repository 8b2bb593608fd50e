"""A real training under control: what is saved on demand is whole, and training goes on from it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from monolith.checkpoint import Saver
from monolith.cluster import BarrierOp
from monolith.hooks import BarrierSaverListener, NoFirstSaveCheckpointSaverHook
from monolith.hooks.server import ControllerClient, ServerHook
from monolith.testing import ExampleTask
from monolith.train import PipelineConfig, Session

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class Endless(ExampleTask):
    """The task's batches, again and again."""

    def input_fn(self, mode: Any) -> Any:
        batches = list(super().input_fn(mode))
        while True:
            yield from batches


@pytest.mark.parametrize(
    "pipeline", [PipelineConfig(), PipelineConfig(prefetch=2, postpush=True)], ids=["plain", "ahead"]
)
def test_stop_save_resume_of_a_session_that_reads_ahead(tmp_path: Path, pipeline: PipelineConfig) -> None:
    task, barrier, saver = Endless(), BarrierOp(1), Saver(tmp_path)
    saves = NoFirstSaveCheckpointSaverHook(saver, guard_saver_listeners=[BarrierSaverListener(barrier)])
    control = ServerHook(str(tmp_path), barrier, saves)
    session = Session(task, hooks=[saves, control], model_dir=str(tmp_path), pipeline=pipeline)

    def train() -> None:
        with session, session.feed(task.input_fn("train")) as feed:
            while not session.stop_requested:
                session.run_next(feed)

    trainer = threading.Thread(target=train, name="trainer")
    trainer.start()
    address_file = tmp_path / "controller_server_addr.txt"
    while not address_file.exists():
        assert trainer.is_alive()
    with ControllerClient.of_model_dir(str(tmp_path), timeout_seconds=50) as client:
        saved_at = []
        for _ in range(5):
            client.save_checkpoint()
            saved_at.append(saves.last_saved_step or 0)
        client.stop_training()
        client.save_checkpoint()
        stopped_at = client.get_global_step()
        assert saves.last_saved_step == stopped_at
        assert client.get_block_status() == ([0], [])
        client.resume_training()
        while client.get_global_step() == stopped_at:
            pass
    session.request_stop()
    trainer.join(50)
    assert not trainer.is_alive()
    assert saved_at == sorted(saved_at)

    restored = Session(Endless(), restore=lambda state: Saver(tmp_path).restore(state))
    with restored:
        assert restored.global_step == session.global_step > stopped_at


def test_a_save_where_nobody_steps_is_made_at_once(tmp_path: Path) -> None:
    """The thread that owns the session asks for the save itself, as in the original's test."""
    task, barrier = ExampleTask(), BarrierOp(1)
    saves = NoFirstSaveCheckpointSaverHook(Saver(tmp_path))
    hooks = [saves, ServerHook(str(tmp_path), barrier, saves)]
    with (
        Session(task, hooks=hooks, model_dir=str(tmp_path)) as session,
        ControllerClient.of_model_dir(str(tmp_path), timeout_seconds=50) as client,
    ):
        for batch in list(task.input_fn("train"))[:3]:
            session.run(batch)
        client.save_checkpoint()
        assert saves.last_saved_step == client.get_global_step() == 3
