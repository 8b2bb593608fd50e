"""A real training under control: what is saved on demand is whole, and training goes on from it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import monolith
from monolith import cli
from monolith.checkpoint import Saver
from monolith.cluster import BarrierOp
from monolith.hook import Hook, StepContext
from monolith.hooks import BarrierSaverListener, NoFirstSaveCheckpointSaverHook
from monolith.hooks.server import ClientCredentials, ControllerClient, ServerHook
from monolith.testing import ExampleTask
from monolith.train import ControlConfig, PipelineConfig, Session, Trainer, TrainerConfig

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


@pytest.mark.parametrize("pipeline", [PipelineConfig(), PipelineConfig(prefetch=2, postpush=True)])
def test_a_silent_input_does_not_block_saving(tmp_path: Path, pipeline: PipelineConfig) -> None:
    silent, may_go_on = threading.Event(), threading.Event()

    class Live(ExampleTask):
        def input_fn(self, mode: Any) -> Any:
            batches = list(super().input_fn(mode))
            yield from batches[:5]
            silent.set()
            assert may_go_on.wait(50)
            yield from batches[5:]

    config = TrainerConfig(model_dir=str(tmp_path), pipeline=pipeline, control=ControlConfig())
    trainer = Trainer(Live(), config)
    training = threading.Thread(target=trainer.train)
    training.start()
    assert silent.wait(50)
    with ControllerClient.of_model_dir(str(tmp_path), timeout_seconds=50) as client:
        while client.get_global_step() < 5:
            pass
        client.save_checkpoint()
        assert (tmp_path / "model.ckpt-5.manifest").exists()
        client.stop_training()
        may_go_on.set()
        client.save_checkpoint()
        assert client.get_global_step() == 5
        client.resume_training()
    training.join(50)
    assert not training.is_alive()
    assert trainer.state is not None
    assert trainer.state.global_step == 20


def test_a_save_while_no_step_runs_is_made_immediately(tmp_path: Path) -> None:
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


def test_rows_are_erased_from_a_training_and_from_the_checkpoint_that_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, barrier = ExampleTask(), BarrierOp(1)
    saves = NoFirstSaveCheckpointSaverHook(Saver(tmp_path))
    hooks = [saves, ServerHook(str(tmp_path), barrier, saves)]

    def erase(*arguments: object) -> int:
        return cli.main(["tables", "erase", str(tmp_path), "--slot", *map(str, arguments)])

    with Session(task, hooks=hooks, model_dir=str(tmp_path)) as session:
        batches = list(task.input_fn("train"))
        session.run(batches[0])
        with ControllerClient.of_model_dir(str(tmp_path), timeout_seconds=50) as client:
            client.save_checkpoint()
        session.run(batches[1])
        (emb,) = session.state.embeddings.values()
        slot = next(iter(emb.slots))
        ids, rows = emb.vectors(slot)[0].tolist(), emb.num_rows
        assert erase(slot, "--json", "--ids", ids[0], ids[-1], 10**12) == 0
        told = json.loads(capsys.readouterr().out)
        assert told == {"slot": slot, "ids": 3, "rows": 2, "older_checkpoints": [f"{tmp_path}/model.ckpt-1"]}
        assert emb.vectors(slot)[0].tolist() == ids[1:-1]
        assert emb.num_rows == rows - 2
        assert erase("nobody", "--ids", 7) == 1
        assert f"'nobody' does not exist; the slots of the model are {sorted(emb.slots)}" in capsys.readouterr().err
        session.run(batches[2])
    assert erase(slot, "--dry_run", "--ids", *ids) == 0
    assert f"model.ckpt-2: {len(ids) - 2} rows of {len(ids)} ids" in capsys.readouterr().out


def test_a_trainer_serves_if_configured_to(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open sesame\n")
    config = TrainerConfig(model_dir=str(tmp_path), control=ControlConfig(token_file=str(tmp_path / "token")))
    seen: list[tuple[int, int]] = []

    class Operator(Hook):
        def after_run(self, context: StepContext) -> None:
            if context.global_step == 5:
                credentials = ClientCredentials(token="open sesame")  # noqa: S106 - a test's
                with ControllerClient.of_model_dir(
                    str(tmp_path), credentials=credentials, timeout_seconds=50
                ) as client:
                    client.stop_training()
                    client.resume_training()
                    seen.append((client.get_global_step(), len(client.get_block_status()[1])))

    Trainer(ExampleTask(), config, hooks=[Operator()]).train()
    assert seen == [(5, 1)]
    assert not (tmp_path / "controller_server_addr.txt").exists()
    Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path)), hooks=[NoAddress(tmp_path)]).train(steps=1)


class NoAddress(Hook):
    """Finds that nothing is served."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir

    def after_run(self, context: StepContext) -> None:
        assert not (self._model_dir / "controller_server_addr.txt").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_monolith_train_is_controlled_from_another_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "endless.py").write_text(
        "from monolith.testing import ExampleTask\n"
        "class Endless(ExampleTask):\n"
        "    @classmethod\n"
        "    def params(cls):\n"
        "        return super().params().set(num_batches=10**9)\n"
    )
    source = str(Path(monolith.__path__[0]).parent)
    program = f"import sys; sys.path.insert(0, {source!r}); from monolith.cli import main; sys.exit(main())"
    arguments = ["train", "endless:Endless", "--model_dir", "m", "--save_checkpoints_steps", "1000000"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 240
        while not (tmp_path / "m" / "controller_server_addr.txt").exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)

        def control(action: str) -> dict[str, Any]:
            command = ["control", action, "--model_dir", str(tmp_path / "m"), "--json", "--timeout_seconds", "30"]
            assert cli.main(command) == 0
            return dict(json.loads(capsys.readouterr().out))

        control("stop")
        saved = control("save")
        assert saved["blocked"] == [0]
        assert (tmp_path / "m" / f"model.ckpt-{saved['global_step']}.manifest").exists()
        process.send_signal(signal.SIGINT)  # a stopped training can be ended, too
        _, said = process.communicate(timeout=240)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, said
    assert not (tmp_path / "m" / "controller_server_addr.txt").exists()
