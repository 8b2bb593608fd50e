"""What `Trainer` costs: the same model trained by a plain loop and by a trainer, alternating, in one process.

    python benchmarks/trainer.py            # about two minutes
    python benchmarks/trainer.py --quick    # few steps: does everything run?
    python benchmarks/trainer.py --cpu-time --threads 1     # on a machine that is busy

A turn trains twice over the same batches, which are in memory, and the second time counts: the first one makes the
rows, and how fast the system hands out memory for them is no figure of ours. Each pair has both ways once, the first
one changing from pair to pair; the figure is the median over pairs of the ratio of their seconds.

- plain loop: ``model_fn``, ``backward``, ``optimizer.step``, ``emb.step``;
- trainer: a `Session` with a model directory, so with the hooks of the chief (saver, NaN guard, throughput, log);
  at most 1.03 of the plain loop;
- deterministic: the same, repeatable; at most 1.10 of the plain loop;
- pipeline: rows read ahead and gradients applied a step later, for comparison;
- start: `monolith train` of an empty model, from the start of the process to the end of its first step; below 5 s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import monolith as ml
from monolith.hook import Hook
from monolith.train import PipelineConfig, SavingConfig, Spec, Task, Trainer, TrainerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PAIRS = 20
STARTS = 5
MOST_START_SECONDS = 5.0
STEP_ENDED = "first_step_ended"
"""The file in the model directory that gets the time of it."""
clock_now: Callable[[], float] = time.perf_counter
NUM_SLOTS = 8
BATCH_SIZE = 1024


class Ranker(Task):
    """Eight slots of 16 floats and two layers."""

    batches: list[dict[str, Any]]

    def build(self) -> None:
        """Makes the modules."""
        self.emb = ml.Embeddings({f"slot_{i}": ml.Slot(dim=16) for i in range(NUM_SLOTS)})
        self.top = nn.Sequential(nn.Linear(16 * NUM_SLOTS, 64), nn.ReLU(), nn.Linear(64, 1))

    def input_fn(self, mode: str) -> Iterable[dict[str, Any]]:  # noqa: ARG002 - the same for all
        """The batches in memory."""
        return self.batches

    def model_fn(self, features: Any, mode: str) -> Spec:  # noqa: ARG002 - the same for all
        """Log loss."""
        logits = self.top(self.emb(features).concat()).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits, label=features["label"])


class Starting(Ranker):
    """What `monolith train` is started with: one batch of a few rows."""

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        self.batches = make_batches(1)

    def training_hooks(self) -> Sequence[Hook]:
        """Notes when the step has ended."""
        return [_StepEnded()]


class _StepEnded(Hook):
    def after_run(self, context: Any) -> None:
        Path(context.session.model_dir, STEP_ENDED).write_text(repr(time.time()))


def start_seconds() -> float:
    """From the start of a process to the end of its first step."""
    places = [str(Path(__file__).parent), str(Path(ml.__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {places}; from monolith.cli import main; sys.exit(main(sys.argv[1:]))"
    with tempfile.TemporaryDirectory() as model_dir:
        command = [sys.executable, "-c", program, "train", "trainer:Starting", "--model_dir", model_dir]
        begun = time.time()
        subprocess.run(command, check=True, capture_output=True)
        return float(Path(model_dir, STEP_ENDED).read_text()) - begun


def make_batches(steps: int) -> list[dict[str, Any]]:
    """Ids in a range of 200,000, and labels by the toss of a coin."""
    random = torch.Generator().manual_seed(0)
    return [
        {f"slot_{i}": torch.randint(200_000, (BATCH_SIZE,), generator=random) for i in range(NUM_SLOTS)}
        | {"label": torch.randint(2, (BATCH_SIZE,), generator=random).float()}
        for _ in range(steps)
    ]


def plain_loop(batches: list[dict[str, Any]]) -> float:
    """Seconds of a loop without any of it."""
    task = Ranker()
    model = task.make_model()
    optimizer = torch.optim.Adam(model.parameters())
    begun = 0.0
    for number, batch in enumerate([*batches, *batches]):
        if number == len(batches):
            begun = clock_now()
        spec = task.model_fn(batch, "train")
        optimizer.zero_grad()
        spec.loss.backward()  # type: ignore[union-attr]
        optimizer.step()
        task.emb.step()
    return clock_now() - begun


def trainer_loop(batches: list[dict[str, Any]], config: TrainerConfig) -> float:
    """Seconds of the steps of a trainer; building and the save at the end do not count."""
    task = Ranker()
    task.batches = [*batches, *batches]
    clock = _StepClock(begin=len(batches))
    with tempfile.TemporaryDirectory() as model_dir:
        values = {name: getattr(config, name) for name in config.__dataclass_fields__}
        Trainer(task, TrainerConfig(**values | {"model_dir": model_dir}), hooks=[clock]).train()
    return clock.seconds


class _StepClock(Hook):
    """Measures from the end of one step of a session to the end of its last one.

    Args:
        begin: That step.
    """

    def __init__(self, *, begin: int) -> None:
        self.seconds = 0.0
        self._begin = begin
        self._begun = 0.0

    def after_run(self, context: Any) -> None:
        """The last step counts."""
        if context.global_step == self._begin:
            self._begun = clock_now()
        self.seconds = clock_now() - self._begun


def main() -> int:
    """Measure and print; 1 when something that must be reached was not."""
    parser = argparse.ArgumentParser(description="Measures what a trainer costs.")
    parser.add_argument("--quick", action="store_true", help="few steps and pairs")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--steps", type=int, default=50, help="steps of a turn that count")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of turns")
    parser.add_argument("--cpu-time", action="store_true", help="count the CPU's seconds, on a machine that is busy")
    args = parser.parse_args()
    if args.cpu_time:
        global clock_now  # noqa: PLW0603 - what a second is, for the complete run
        clock_now = time.process_time
    torch.set_num_threads(args.threads)
    print("| measure | ours | plain loop | ratio | must reach | ok |\n|---|---|---|---|---|---|")
    is_good = measure_steps(make_batches(10 if args.quick else args.steps), 2 if args.quick else args.pairs)
    is_good = measure_start(1 if args.quick else STARTS) and is_good
    return 0 if is_good or args.quick else 1


def measure_steps(batches: list[dict[str, Any]], pairs: int) -> bool:
    """Prints what a step costs in each way; whether all that must be reached was."""
    saving = SavingConfig(every_steps=10**9)
    read_ahead = PipelineConfig(prefetch=1, postpush=True)
    ways: dict[str, tuple[TrainerConfig, float | None]] = {
        "trainer": (TrainerConfig(saving=saving), 1.03),
        "deterministic": (TrainerConfig(saving=saving, deterministic=True), 1.10),
        "pipeline": (TrainerConfig(saving=saving, pipeline=read_ahead), None),
    }
    plain_loop(batches)
    is_good = True
    for name, (config, limit) in ways.items():
        ours, plain = _pairs(lambda config=config: trainer_loop(batches, config), lambda: plain_loop(batches), pairs)  # type: ignore[misc]
        ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
        is_good = is_good and (limit is None or ratio <= limit)
        step = [1000 * statistics.median(each) / len(batches) for each in (ours, plain)]
        verdict = "" if limit is None else "yes" if ratio <= limit else "NO"
        wanted = "" if limit is None else f"<= {limit:.2f}"
        print(f"| {name} | {step[0]:.3f} ms | {step[1]:.3f} ms | {ratio:.3f} | {wanted} | {verdict} |", flush=True)
    return is_good


def measure_start(count: int) -> bool:
    """Prints what the start of a run takes; whether that is short enough."""
    starts = [start_seconds() for _ in range(count)]
    start = statistics.median(starts)
    verdict = "yes" if start < MOST_START_SECONDS else "NO"
    figure = f"{start:.2f} s ({min(starts):.2f} to {max(starts):.2f})"
    print(f"| start | {figure} | | | < {MOST_START_SECONDS:g} s | {verdict} |")
    return start < MOST_START_SECONDS


def _pairs(way: Callable[[], float], other: Callable[[], float], count: int) -> tuple[list[float], list[float]]:
    """Seconds of both ways in each pair; which one comes first changes."""
    ours, plain = [], []
    for number in range(count):
        if number % 2:
            plain.append(other())
            ours.append(way())
        else:
            ours.append(way())
            plain.append(other())
    return ours, plain


if __name__ == "__main__":
    sys.exit(main())
