"""Measures two builds of this package alternately, so that a change shows what it costs.

    git worktree add ../before main~20
    python -m pip install --no-deps --target /tmp/before ../before
    python -m pip install --no-deps --target /tmp/after .
    python benchmarks/compare.py /tmp/before /tmp/after             # 9 rounds, about ten minutes

A round measures everything once with each build, in processes of their own, the first one changing from round to round;
the figure is the median over rounds of after / before, with the lowest and the highest round. Below 1 is faster. What
is measured uses public calls that both builds have: tables, a module over 26 slots, cut, save and restore, a session,
a trainer, predictions in the process and over HTTP, and a parameter server.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 1_000_000
BATCH = 40_000
SLOTS = [f"slot_{number}" for number in range(26)]


def best(call: Callable[[], object], turns: int) -> float:
    """Seconds of the fastest turn, after one that does not count: what disturbs a turn only adds to it."""
    call()
    times = []
    for _ in range(turns):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def measure_tables(found: dict[str, float]) -> None:
    """Lookups and updates of one table, its cut and its files."""
    import monolith as ml  # noqa: PLC0415 - which build it is, is the parent's choice

    segment = ml.Segment(16, optimizer=ml.row_optimizers.Adagrad(learning_rate=0.05))
    table = ml.HashTable(ml.TableConfig([segment]))
    random = np.random.default_rng(1)
    ids = random.permutation(ROWS).astype(np.int64) * 2**20
    begun = time.perf_counter()
    table.reinitialize(ids)
    found["insert 1M rows"] = time.perf_counter() - begun
    batches = [random.choice(ids, BATCH) for _ in range(16)]
    gradients = np.ones((BATCH, 16), np.float32)
    found["lookup 16 x 40,000 ids"] = best(lambda: [table.lookup(batch) for batch in batches], 7)
    found["apply_gradients 16 x 40,000 ids"] = best(
        lambda: [table.apply_gradients(batch, gradients, step=1, time=1) for batch in batches], 7
    )
    one = ids[:1]
    found["lookup of one id, 2,000 times"] = best(lambda: [table.lookup(one) for _ in range(2000)], 7)
    found["cut and release"] = best(lambda: table.cut().release(), 21)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        found["save 1M rows"] = best(lambda: table.save(folder), 3)
        found["restore 1M rows"] = best(lambda: ml.HashTable(ml.TableConfig([segment])).restore(folder), 3)


def measure_module(found: dict[str, float]) -> None:
    """Forward, backward and update of a module over 26 slots."""
    import monolith as ml  # noqa: PLC0415 - which build it is, is the parent's choice

    emb = ml.Embeddings({name: ml.Slot(dim=16) for name in SLOTS})
    random = torch.Generator().manual_seed(0)
    batches = [{name: torch.randint(100_000, (1024,), generator=random) for name in SLOTS} for _ in range(8)]

    def train() -> None:
        for batch in batches:
            emb(batch).concat().sum().backward()
            emb.step()

    found["Embeddings, 8 steps of 1,024 x 26"] = best(train, 9)
    small = [{name: ids[:8] for name, ids in batch.items()} for batch in batches]

    def train_small() -> None:
        for batch in small * 10:
            emb(batch).concat().sum().backward()
            emb.step()

    found["Embeddings, 80 steps of 8 x 26"] = best(train_small, 9)
    emb.eval()
    found["Embeddings, 8 lookups of 1,024 x 26"] = best(lambda: [emb(batch) for batch in batches], 9)


def measure_training(found: dict[str, float]) -> None:
    """Steps of a session, and a trainer with checkpoints."""
    from monolith.testing import ExampleTask  # noqa: PLC0415 - which build it is, is the parent's choice
    from monolith.train import SavingConfig, Session, Trainer, TrainerConfig  # noqa: PLC0415 - as above

    task = ExampleTask()
    batches = list(task.input_fn("train"))
    with Session(task) as session:
        found["session, 200 small steps"] = best(lambda: [session.run(batch) for batch in batches * 10], 7)

    def train() -> None:
        with tempfile.TemporaryDirectory(dir=_memory()) as model_dir:
            saving = SavingConfig(every_steps=5)
            Trainer(ExampleTask(), TrainerConfig(model_dir=model_dir, saving=saving)).train()

    found["trainer, 20 steps and 4 checkpoints"] = best(train, 5)


def measure_serving(found: dict[str, float]) -> None:
    """Predictions in the process, and over one connection of HTTP."""
    from monolith.serving import Predictor  # noqa: PLC0415 - which build it is, is the parent's choice
    from monolith.serving.server import ModelRegistry, ModelServer  # noqa: PLC0415 - as above
    from monolith.testing import ExampleTask  # noqa: PLC0415 - as above
    from monolith.train import Trainer  # noqa: PLC0415 - as above

    trainer = Trainer(ExampleTask())
    trainer.train(steps=20)
    example = next(iter(trainer.task.input_fn("train")))
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        trainer.export(folder, example=example)
        with Predictor(folder) as predictor:
            inputs = {name: np.arange(32).reshape(32, 1) for name in predictor.signatures["serving_default"].inputs}
            found["Predictor, 100 requests of 32 examples"] = best(
                lambda: [predictor.predict(inputs) for _ in range(100)], 7
            )
            registry = ModelRegistry()
            registry.add("ranker", predictor)
            body = json.dumps({"inputs": {name: column.tolist() for name, column in inputs.items()}})
            with ModelServer(registry) as server:
                connection = http.client.HTTPConnection("127.0.0.1", server.port)
                found["HTTP, 100 requests of 32 examples"] = best(lambda: _ask(connection, body, 100), 7)
                connection.close()


def _ask(connection: http.client.HTTPConnection, body: str, count: int) -> None:
    for _ in range(count):
        connection.request("POST", "/v1/models/ranker:predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"the server answered {answer.status}: {content[:200]!r}")


def measure_servers(found: dict[str, float]) -> None:
    """Steps with rows on a parameter server, over a socket of this machine."""
    import monolith as ml  # noqa: PLC0415 - which build it is, is the parent's choice
    from monolith.ps import PsCluster, PsServer, PsStore  # noqa: PLC0415 - as above

    with PsServer(0, num_ps=1) as server, PsCluster([server.address]) as cluster:
        emb = ml.Embeddings({"id": ml.Slot(dim=16)}, store=partial(PsStore, servers=cluster))
        random = torch.Generator().manual_seed(0)
        batches = [{"id": torch.randint(100_000, (8192,), generator=random)} for _ in range(8)]

        def train() -> None:
            for batch in batches:
                emb(batch)["id"].sum().backward()
                emb.step()

        found["server, 8 steps of 8,192 ids"] = best(train, 9)


def _memory() -> str | None:
    """A folder in memory, where there is one: what a disk does is no figure of ours."""
    folder = "/dev/shm"  # noqa: S108 - a folder of its own is made in it
    return folder if os.access(folder, os.W_OK) else None


def run(build: str) -> dict[str, float]:
    """The figures of one build, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": build}  # noqa: TID251 - a child's is its parent's and the build
    command = [sys.executable, str(Path(__file__).resolve()), "--child"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


class Row(NamedTuple):
    """A measure of both builds."""

    name: str
    before_seconds: float
    after_seconds: float
    ratio: float
    """Median over the rounds of after / before."""
    lowest: float
    highest: float
    """The ratio in single rounds. With seven rounds the true median lies between them in 98 % of all runs."""

    @property
    def is_slower(self) -> bool:
        """Whether every round was more than 3 % slower; single rounds differ by more than that."""
        return self.lowest > 1.03


def compare(before: str, after: str, rounds: int) -> list[Row]:
    """Measures both builds alternately."""
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(rounds):
        order = (before, after) if number % 2 == 0 else (after, before)
        figures = {build: run(build) for build in order}
        found.append((figures[before], figures[after]))
        sys.stderr.write(f"round {number + 1} of {rounds}\n")
    rows = []
    for name in found[0][0]:
        old, new = ([pair[side][name] for pair in found] for side in (0, 1))
        ratios = [b / a for a, b in zip(old, new, strict=True)]
        middle = [statistics.median(each) for each in (old, new, ratios)]
        rows.append(Row(name, middle[0], middle[1], middle[2], min(ratios), max(ratios)))
    return rows


def main() -> int:
    """Prints the table; 1 if something became slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="*", metavar="FOLDER", help="before, after: where the packages are")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="threads of the core and of torch")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return _child(args.threads)
    if len(args.builds) != 2:
        parser.error("give two folders: the build before and the one after")
    rows = compare(args.builds[0], args.builds[1], args.rounds)
    print("| Measure | before | after | after / before | single rounds | |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        times = f"{row.before_seconds * 1e3:.3f} ms | {row.after_seconds * 1e3:.3f} ms"
        ratios = f"{row.ratio:.3f} | {row.lowest:.3f} to {row.highest:.3f}"
        print(f"| {row.name} | {times} | {ratios} | {'NO' if row.is_slower else 'ok'} |")
    return int(any(row.is_slower for row in rows))


def _child(threads: int) -> int:
    from monolith import _core  # noqa: PLC0415 - which build it is, is the parent's choice

    _core.set_num_threads(threads)
    torch.set_num_threads(threads)
    found: dict[str, float] = {}
    measures: list[Callable[[dict[str, float]], Any]] = [
        measure_tables,
        measure_module,
        measure_training,
        measure_serving,
        measure_servers,
    ]
    for measure in measures:
        measure(found)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
