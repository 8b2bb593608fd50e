"""A new user's first day, with files of their own: from a CSV file to a server that follows a stream.

Every step uses the commands and calls of the README and the how-to pages. Several processes are compared with one:
each event is trained equally often, exactly, and the AUC differs by at most `AUC_TOLERANCE`.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch.utils.data import DataLoader

import monolith as ml
from monolith.data import CsvDataset
from monolith.train import Trainer, TrainerConfig
from programs import Programs
from system.first_day_files import (
    BATCH,
    EPOCHS,
    FIRST_EVENT,
    ITEMS,
    LAST_USER,
    RETURNING_USERS,
    ROWS,
    STREAM_ROWS,
    TASK,
    USERS,
    write_clicks,
    write_events,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch.*", "ignore::UserWarning:lightn.*"
)
STEPS = -(-EPOCHS * ROWS // BATCH)
AUC_TOLERANCE = 0.01
"""Between one process and several, which make other batches of the same examples. Counts have no tolerance."""
FP16_TOLERANCE = 2e-3
"""Between predictions of a trainer and of a server: an export keeps rows as fp16."""
HANG_SECONDS = 120
"""Only ends a hang; every wait is for an event."""
EACH_EVENT_ONCE_AN_EPOCH = {float(EPOCHS): ROWS}
EXPIRED_USER, ERASED_USER, UNSEEN_USER = f"user-{USERS - 1}", "user-1", "user-never"
Instances = Sequence[dict[str, Any]]


class Shell:
    """Runs commands in the user's folder."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self.folder = folder
        self._programs = programs
        self._monolith = folder / "monolith_command.py"
        self._monolith.write_text("import sys\nfrom monolith.cli import main\nsys.exit(main())\n")
        self._background = ExitStack()

    def monolith(self, *arguments: str) -> str:
        """The output of ``monolith ARGUMENTS``."""
        done = self._programs.run(self._monolith, *arguments, folder=self.folder)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts ``python ARGUMENTS`` in the background, with its log in the file NAME.log."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}  # noqa: TID251 - a child's
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._background.enter_context(process)
        self._background.callback(_stop, process)
        return process

    def wait(self, name: str, process: subprocess.Popen[str]) -> tuple[int, str]:
        """The exit code of a process in the background, and its output; the log is added where it failed."""
        output = process.communicate(timeout=HANG_SECONDS)[0]
        log = (self.folder / f"{name}.log").read_text()
        return process.returncode, output if process.returncode == 0 else output + log

    def close(self) -> None:
        """Ends what still runs in the background."""
        self._background.close()


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(HANG_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


@pytest.fixture
def shell(tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    (tmp_path / "task.py").write_text(TASK)
    write_clicks(tmp_path / "clicks.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shell = Shell(tmp_path, programs)
    yield shell
    shell.close()
    sys.modules.pop("task", None)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
@pytest.mark.timeout(600)
def test_a_first_day(shell: Shell) -> None:
    one = train_in_one_process(shell)
    train_in_several_processes(shell, one)
    save_with_lightning(shell.folder)
    train_in_half_precision()
    server = serve(shell)
    instances = export_is_served(server)
    training = train_on_a_stream(shell, server)
    rows_expire(server)
    erase_a_user(shell, server)
    stop(shell, server, training, instances)


# Training


def train_in_one_process(shell: Shell) -> dict[str, Any]:
    """Trains the CSV file; returns what the other runs are compared with."""
    result = json.loads(shell.monolith("train", "task:Clicks", "--model_dir", "one", "--json"))
    assert (result["trained_steps"], result["ended_by"]) == (STEPS, "data")
    one = evaluate(shell, "one")
    assert (one["trained"], one["global_step"]) == (EACH_EVENT_ONCE_AN_EPOCH, STEPS)
    assert one["auc"] > 0.93
    return one


def train_in_several_processes(shell: Shell, one: dict[str, Any]) -> None:
    """A job of two servers and two workers, and two ranks of torchrun: the same examples, and as good a model."""
    output = shell.monolith(
        "train", "task:Clicks", "--model_dir", "job", "--num_ps", "2", "--num_workers", "2", "--json"
    )
    assert json.loads(output)["restarts"] == 0
    torchrun = ("torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node", "2")
    launched = shell.start("ranks", "-m", *torchrun, "--log-dir", "logs", "task.py", "--model_dir", "ranks")
    code, output = shell.wait("ranks", launched)
    assert code == 0, output
    job, ranks = evaluate(shell, "job"), evaluate(shell, "ranks")
    assert [job["trained"], ranks["trained"]] == [EACH_EVENT_ONCE_AN_EPOCH] * 2
    assert job["global_step"] in {STEPS, STEPS + 1}  # each worker has a last batch of its own
    assert ranks["global_step"] in {STEPS // 2, STEPS // 2 + 1}  # a step takes a batch of each rank
    assert re.findall(r"ended at step (\d+)", output) == [str(ranks["global_step"])] * 2
    assert [job["auc"], ranks["auc"]] == pytest.approx([one["auc"]] * 2, abs=AUC_TOLERANCE)


def evaluate(shell: Shell, model_dir: str) -> dict[str, Any]:
    """The output of ``--mode eval``, and how many events were trained how often (``trained``)."""
    found = json.loads(shell.monolith("train", "task:Clicks", "--model_dir", model_dir, "--mode", "eval", "--json"))
    assert found["examples"] == ROWS
    times = load(model_dir).counts.lookup("event", FIRST_EVENT + torch.arange(ROWS)).flatten().tolist()
    rounded = [round(each, 3) for each in times]
    return {**found, "trained": {each: rounded.count(each) for each in set(rounded)}}


def load(model_dir: str) -> Any:
    """The task, with the newest checkpoint of a directory."""
    task = importlib.import_module("task").Clicks()
    ml.load(task.make_model(), model_dir)
    return task


class LightningClicks(lightning.LightningModule):
    """A model of users alone, with rows of 32 floats."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = ml.Embeddings({"user": ml.Slot(32)})
        self.head = torch.nn.Linear(32, 1)

    def forward(self, batch: Any) -> Any:
        return self.head(self.emb({"user": batch["user"]}).concat()).squeeze(1)

    def training_step(self, batch: Any, _: int) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(self(batch), batch["label"].float())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.emb.optimizer(torch.optim.Adam(self.head.parameters()))


def save_with_lightning(folder: Path) -> None:
    """A checkpoint above 64 MiB has the rows: a model that is loaded from it predicts the same."""
    batches = CsvDataset("clicks.csv", ["user", "label"]).batch(BATCH).take(10)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model, ids = LightningClicks(), torch.arange(260_000)
    model.emb.assign("user", ids, torch.randn(len(ids), 32))
    trainer.fit(model, DataLoader(batches, batch_size=None))
    trainer.save_checkpoint(folder / "lightning.ckpt")
    assert (folder / "lightning.ckpt").stat().st_size > 64 << 20
    loaded = LightningClicks.load_from_checkpoint(folder / "lightning.ckpt")
    assert loaded.emb.num_rows == model.emb.num_rows == len(ids) + USERS
    batch = {"user": torch.cat([ids[::1000], next(iter(batches))["user"].values])}
    assert torch.equal(loaded.eval()(batch), model.eval()(batch))


def train_in_half_precision() -> None:
    """Rows get the same updates with autocast and a scaler as without."""
    batches = list(CsvDataset("clicks.csv", ["user", "item", "label"]).batch(BATCH).take(5))
    users = batches[0]["user"].values.unique()

    def updates(scaler: torch.amp.GradScaler) -> torch.Tensor:
        emb = ml.Embeddings({name: ml.Slot(8) for name in ("user", "item")}, ml.row_optimizers.Sgd(learning_rate=1.0))
        torch.manual_seed(3)
        head = torch.nn.Linear(16, 1)
        optimizers = [torch.optim.Adam(head.parameters()), emb.optimizer()]
        first = emb.lookup("user", users)
        for batch in batches:
            with torch.autocast("cpu", torch.float16, enabled=scaler.is_enabled()):
                logits = head(emb({name: batch[name] for name in ("user", "item")}).concat()).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), batch["label"].float())
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            for each in optimizers:
                scaler.step(each)
                each.zero_grad()
            scaler.update()
        return emb.lookup("user", users) - first

    plain = updates(torch.amp.GradScaler("cpu", enabled=False))
    scaled = updates(torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert plain.abs().mean() > 1e-3
    assert (scaled - plain).abs().max() < 0.02 * plain.abs().max()


# Serving


class Server:
    """A client of ``monolith serve``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self._url = f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}/v1/models/clicks:predict"

    def predict(self, instances: Instances) -> list[float]:
        request = urllib.request.Request(self._url, json.dumps({"instances": instances}).encode())  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:  # noqa: S310 - the same
            return list(json.load(answer)["predictions"])

    def has_row(self, user: str) -> bool:
        """Whether the prediction for a user differs from that for one who was never seen."""
        found, unseen = self.predict([{"user": name, "item": 1000, "price": 0.5} for name in (user, UNSEEN_USER)])
        return found != unseen


def serve(shell: Shell) -> Server:
    """Serves the model of one process, and follows a stream that is not trained yet."""
    shell.monolith("checkpoint", "export", "one", "export", "--serving", "--task", "task:Clicks")
    models = ("clicks=export", "--follow", "live/delta_log")
    return Server(shell.start("serve", "-m", "monolith", "serve", *models, "--port", "0", "--json"))


def export_is_served(server: Server) -> Instances:
    """Requests with texts, of the first batch of the file, are answered as the trainer predicts."""
    lines = [line.split(",") for line in Path("clicks.csv").read_text().splitlines()[1 : BATCH + 1]]
    instances = [{"user": line[2], "item": int(line[3]), "price": float(line[4])} for line in lines]
    assert server.predict(instances) == pytest.approx(predict_first_batch("one"), abs=FP16_TOLERANCE)
    return instances


def predict_first_batch(model_dir: str) -> list[float]:
    clicks = importlib.import_module("task").Clicks
    found: Any = next(Trainer(clicks, TrainerConfig(model_dir=model_dir)).predict())
    return list(found.tolist())


# The stream


def train_on_a_stream(shell: Shell, server: Server) -> subprocess.Popen[str]:
    """Joins impressions and actions and trains the model on them; the server applies the updates while it runs."""
    assert [server.has_row(user) for user in (EXPIRED_USER, ERASED_USER, LAST_USER)] == [True, True, False]
    instances = [{"user": "user-0", "item": 1000 + item, "price": 0.5} for item in range(ITEMS)]
    before = server.predict(instances)
    write_events(shell.folder)
    places = ("--impressions", "shown-{partition}", "--actions", "done-{partition}", "--output", "joined-{partition}")
    window = ("--state_dir", "state", "--window_seconds", "60", "--stop_at_end")
    shell.monolith("joiner", *places, "--partitions", "1", *window)
    model = ("task:Live", "--model_dir", "live", "--restore_dir", "one", "--restart_input")
    stream = ("--stream", "joined-{partition}", "--stream_partitions", "1")
    log = ("--enable_realtime_training", "--delta_log_interval_secs", "0.1", "--delta_log_dense_interval_secs", "0.1")
    training = shell.start("live", "-m", "monolith", "train", *model, *stream, *log, "--json")
    wait_until(lambda: server.has_row(LAST_USER), training)
    wait_until(lambda: sum(server.predict(instances)) > sum(before), training)  # every impression was clicked
    return training


def rows_expire(server: Server) -> None:
    """Users who were last seen in the CSV file have no row any more, and returning users have."""
    wait_until(lambda: not server.has_row(EXPIRED_USER))
    assert server.has_row(ERASED_USER)


def erase_a_user(shell: Shell, server: Server) -> None:
    """The training that runs removes the row, and so does the server."""
    chosen = ("--slot", "user", "--ids", ERASED_USER, "--texts")
    assert json.loads(shell.monolith("tables", "erase", "live", *chosen, "--json"))["rows"] == 1
    wait_until(lambda: not server.has_row(ERASED_USER))


def stop(shell: Shell, server: Server, training: subprocess.Popen[str], instances: Instances) -> None:
    """The last checkpoint has the rows that are left, and the server answers with it."""
    training.send_signal(signal.SIGTERM)
    code, output = shell.wait("live", training)
    assert code == 130, output
    assert json.loads(output.splitlines()[0])["stream"]["examples"] == STREAM_ROWS
    assert load("live").emb.num_rows_by_slot() == {"user": RETURNING_USERS + 1 - 1, "item": ITEMS}
    wanted = pytest.approx(predict_first_batch("live"), abs=FP16_TOLERANCE)
    wait_until(lambda: server.predict(instances) == wanted)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(HANG_SECONDS) == 0


def wait_until(is_so: Callable[[], bool], running: subprocess.Popen[str] | None = None) -> None:
    """Asks until it is so; fails if a process ends meanwhile that is needed for it."""
    pause = threading.Event()
    for _ in range(int(HANG_SECONDS / 0.05)):
        if is_so():
            return
        assert running is None or running.poll() is None, "the training has ended"
        pause.wait(0.05)
    raise AssertionError("waited too long")
