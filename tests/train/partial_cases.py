"""What the processes of partially synchronous jobs run; `test_partial_sync` starts them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import monolith as ml
from monolith import collective
from monolith.cluster.discovery import HostServiceDiscovery, ServiceDiscoveryType
from monolith.errors import InvalidArgumentError, OpError
from monolith.hook import Hook, StepContext
from monolith.tensors import Ragged
from monolith.train import Estimator, JobProgramConfig, RunnerConfig, Spec, Task, Trainer, distributed_train
from train.exact_clicks import ExportedClicks
from train.sync_cases import Batches, RowsTask, Watch, numbers_of

NUM_PS = 2
LAST = 13
"""Number of batches of all ranks, so that rank 0 has one more than rank 1."""


def config_of(folder: Path, **options: Any) -> RunnerConfig:
    """Of a process of the job in this folder."""
    return RunnerConfig(
        **{
            "model_dir": str(folder / "model"),
            "num_ps": NUM_PS,
            "discovery_type": ServiceDiscoveryType.HOST,
            "discovery_dir": str(folder / "places"),
            "host": "127.0.0.1",
            "enable_sync_training": True,
            "enable_partial_sync_training": True,
            "serve_controller": False,
            **options,
        }
    )


def serve(folder: Path, index: int) -> None:
    """One server, until it is told to stop."""
    config = config_of(folder, server_type="ps", index=index)
    (folder / f"server-{index}").write_text(str(os.getpid()))
    distributed_train(config, HostServiceDiscovery(str(folder / "places")), Disjoint.params())


def run(
    task: type[Task],
    folder: Path,
    *,
    hooks: tuple[Hook, ...] = (),
    max_steps: int | None = None,
    ends_servers: bool = False,
    **options: Any,
) -> Trainer:
    """Trains as this rank; servers stay, for what comes after it, unless they are to end with the job."""
    settings = JobProgramConfig(
        max_steps=max_steps,
        deterministic=True,
        shut_down_servers=ends_servers,
        query_failure_handler=lambda _: time.sleep(0.05),  # between two looks for processes that are starting
    )
    discovery = HostServiceDiscovery(str(folder / "places"))
    trainer = distributed_train(
        config_of(folder, **options), discovery, task.params(), user_hooks=hooks, settings=settings
    )
    assert trainer is not None
    return trainer


class Disjoint(RowsTask):
    """No two ranks of a step meet the same id: then rows depend on no order."""

    total = LAST

    def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
        odd = features["number"] % 2
        return super().model_fn(
            {**features, "ids": features["ids"] // 2 * 2 + odd, "user": features["user"] * 0 + odd}, mode
        )


class Broken(Disjoint):
    """Rank 1 meets a NaN in the third step."""

    def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        assert spec.loss is not None
        return Spec(spec.loss * float("nan")) if features["number"] == 5 else spec


def counted(features: dict[str, Any]) -> dict[str, Any]:
    """A batch of three examples, each with one id."""
    number = features["number"]
    ids = Ragged.from_lists([[number], [ALL], [ALL + 1 + number % 2]])
    return {"number": number, "ids": ids, "req_time": features["req_time"][:3]}


class Counting(Task):
    """Rows are counts: of all batches, of those of each worker, and of each batch."""

    total = 2 * LAST

    def build(self) -> None:
        slot = ml.Slot(dim=1, combiner="sum", initializer=ml.initializers.Zeros())
        self.emb = ml.Embeddings({"ids": slot}, optimizer=ml.row_optimizers.Sgd(learning_rate=1.0))
        self.bias = nn.Linear(1, 1, bias=False)
        self.seen: list[int] = []
        """What each batch found of the batches of its own rank."""

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.bias.parameters(), lr=0.25)

    def input_fn(self, mode: Any) -> Any:
        return self.ctx.unshared(Batches(numbers_of(collective.rank(), collective.size(), self.total)).map(counted))

    def model_fn(self, features: Any, mode: Any) -> Spec:
        number = features["number"]
        rows = self.emb(features)["ids"]
        self.seen.append(round(float(rows[2].detach())))
        return Spec(-rows.sum() - self.bias(torch.ones(1, 1)).sum() * (1 + 2 * (number % 2)))


ALL = 1000
"""Id of the row that counts all batches; those behind it count the batches of a rank."""


class At(Hook):
    """Does something after a step, once in the folder."""

    def __init__(self, folder: Path, name: str, *, step: int, rank: int, do: Any) -> None:
        self._done, self._step, self._rank, self._do = folder / name, step, rank, do

    def after_run(self, context: StepContext) -> None:
        if context.global_step == self._step and collective.rank() == self._rank and not self._done.exists():
            self._done.touch()
            self._do()


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


# Cases: each rank calls them with the folder of the job


def case_equal(folder: Path) -> Any:
    """In pieces, saved beside training, on the same servers: by steps, by a signal, to the end by an `Estimator`."""
    nan = ""
    try:
        run(Broken, folder, model_dir=str(folder / "nan" / "model"))
    except InvalidArgumentError as error:
        nan = str(error)
    steps = [run(Disjoint, folder, max_steps=3, save_checkpoints_steps=2).global_step]
    sent_away = At(folder, "signal", step=5, rank=0, do=lambda: os.kill(os.getpid(), signal.SIGTERM))
    steps.append(run(Disjoint, folder, hooks=(sent_away,), ends_servers=True).global_step)
    with Estimator(Disjoint, config_of(folder)) as estimator:
        steps.append(estimator.train(hooks=[watch := Watch()]).global_step)
        found = sorted(estimator.evaluate(steps=1))
    return {"steps": steps, "watched": watch.steps, "evaluated": found, "nan": nan}


def case_counts(folder: Path) -> Any:
    """Rank 1 dies, then a server, each behind a checkpoint that rows have left behind."""

    def kill_server() -> None:
        kill(int((folder / "server-1").read_text()))

    hooks = (
        At(folder, "rank", step=5, rank=1, do=lambda: kill(os.getpid())),
        At(folder, "server", step=9, rank=0, do=kill_server),
    )
    try:
        trainer = run(Counting, folder, hooks=hooks, save_checkpoints_steps=2, embedding_prefetch_capacity=1)
    except OpError as error:
        return f"{type(error).__name__}: {error}"
    return trainer.global_step


def case_pipelines(folder: Path) -> Any:
    """Each begins with nothing, on servers that have the rows of the one before it."""
    found: dict[str, Any] = {}
    for name, options in PIPELINES.items():
        trainer = run(Counting, folder, model_dir=str(folder / name / "model"), **options)
        assert isinstance(trainer.task, Counting)
        found[name] = [trainer.task.seen, trainer.global_step]
    return found


PIPELINES: dict[str, dict[str, Any]] = {
    "none": {},
    "prefetch": {"embedding_prefetch_capacity": 2},
    "postpush": {"enable_embedding_postpush": True},
    "both": {"embedding_prefetch_capacity": 1, "enable_embedding_postpush": True},
}


def case_exports(folder: Path) -> Any:
    """Rank 0 exports what the servers have."""
    trainer = run(ExportedClicks, folder, max_steps=4, ends_servers=True)
    return trainer.global_step
