"""A model with its rows on parameter servers, trained by two workers that each run a plain PyTorch loop.

    python examples/parameter_servers.py

The servers and workers are processes of this machine. Each worker reads half of the clicks and pushes its updates
without waiting for the other worker. For comparison, one process trains the same model on all clicks. Expected: a log
loss on unseen clicks of 0.5 or less in one process, and at most 0.01 more on servers. Needs monolith-torch[ps].
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from typing import IO, TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

import monolith as ml
from monolith.ps import PsStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables import Store, TableConfig

NUM_SERVERS, NUM_WORKERS = 2, 2
USERS, ITEMS, DIM = 500, 250, 4
EXAMPLES, BATCH, TEST_EXAMPLES = 300_000, 512, 30_000
MOST_LOSS, MOST_MORE = 0.5, 0.01

log_loss = nn.BCEWithLogitsLoss()


class Model(nn.Module):
    """Predicts a click from biases of user and item and the product of their vectors; all weights are rows."""

    def __init__(self, servers: list[str] | None = None) -> None:
        super().__init__()
        self._stores = ExitStack()
        row = [ml.Slice(1, initializer=ml.initializers.Zeros()), ml.Slice(DIM)]
        slots = {"user": ml.Slot(slices=row), "item": ml.Slot(slices=row)}
        adagrad = ml.row_optimizers.Adagrad(learning_rate=0.3, initial_accumulator_value=1e-8)

        def on_servers(configs: Mapping[str, TableConfig]) -> Store:
            return self._stores.enter_context(closing(PsStore(configs, servers=servers or [])))

        self.embeddings = ml.Embeddings(slots, adagrad, store=on_servers if servers else None)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits [B]."""
        rows = self.embeddings(batch).stack()  # [B, 2, 1 + DIM]
        logits: Tensor = rows[:, :, 0].sum(1) + (rows[:, 0, 1:] * rows[:, 1, 1:]).sum(1)
        return logits

    def close(self) -> None:
        """Close the connections to the servers."""
        self._stores.close()


def make_clicks() -> tuple[dict[str, Tensor], Tensor]:
    """Generate clicks that depend on the user, the item, and the user's taste."""
    draw = torch.Generator().manual_seed(0)
    eager, popular = torch.randn(USERS, generator=draw), torch.randn(ITEMS, generator=draw)
    taste, flavour = torch.randn(USERS, 2, generator=draw), torch.randn(ITEMS, 2, generator=draw)
    user = torch.randint(USERS, (EXAMPLES,), generator=draw)
    item = torch.randint(ITEMS, (EXAMPLES,), generator=draw)
    logits = eager[user] + popular[item] + (taste[user] * flavour[item]).sum(1)
    return {"user": user, "item": item}, torch.bernoulli(torch.sigmoid(logits), generator=draw)


def train(model: Model, worker: int, num_workers: int) -> None:
    """Train for one pass over this worker's part of the clicks, in a plain PyTorch loop."""
    ids, clicks = make_clicks()
    model.embeddings.join(worker)
    for begin in range(worker * BATCH, EXAMPLES - TEST_EXAMPLES, num_workers * BATCH):
        part = slice(begin, min(begin + BATCH, EXAMPLES - TEST_EXAMPLES))
        loss = log_loss(model({name: column[part] for name, column in ids.items()}), clicks[part])
        loss.backward()
        model.embeddings.step()


def held_out_loss(model: Model) -> float:
    """Return the log loss on the last clicks, which are not trained on."""
    ids, clicks = make_clicks()
    model.eval()
    with torch.no_grad():
        logits = model({name: column[-TEST_EXAMPLES:] for name, column in ids.items()})
    return float(log_loss(logits, clicks[-TEST_EXAMPLES:]))


def run(command: list[str], **options: object) -> subprocess.Popen[str]:
    """Start a Python program."""
    return subprocess.Popen([sys.executable, *command], text=True, **options)  # type: ignore[call-overload, no-any-return]  # noqa: S603


def train_on_servers() -> float:
    """Start servers and workers, wait for the workers, and return the loss of the model on the servers."""
    with ExitStack() as running:
        servers = []
        for index in range(NUM_SERVERS):
            command = ["-m", "monolith", "ps", "--index", str(index), "--num_ps", str(NUM_SERVERS), "--json"]
            servers.append(running.enter_context(run(command, stdout=subprocess.PIPE)))
            running.callback(servers[-1].terminate)
        addresses = [json.loads(cast("IO[str]", server.stdout).readline())["address"] for server in servers]
        options = ["--servers", *addresses]
        workers = [run([__file__, "--worker", str(number), *options]) for number in range(NUM_WORKERS)]
        if any([worker.wait() for worker in workers]):  # noqa: C419 - waits for all workers
            raise SystemExit("a worker failed; its error is above")
        with closing(Model(addresses)) as model:
            return held_out_loss(model)


def main() -> None:
    """Train both ways and compare, or train as one of the workers."""
    parser = argparse.ArgumentParser(description="Two workers and two parameter servers, compared with one process.")
    parser.add_argument("--worker", type=int, help="run as this worker")
    parser.add_argument("--servers", nargs="+", help="addresses of the servers, for a worker")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.worker is not None:
        with closing(Model(args.servers)) as model:
            return train(model, args.worker, NUM_WORKERS)
    begun = time.monotonic()
    alone = Model()
    train(alone, worker=0, num_workers=1)
    expected, between = held_out_loss(alone), time.monotonic()
    got, ended = train_on_servers(), time.monotonic()
    print(f"one process:              log loss {expected:.4f}, {between - begun:.1f} s")
    print(f"{NUM_WORKERS} workers on {NUM_SERVERS} servers:   log loss {got:.4f}, {ended - between:.1f} s")
    assert expected <= MOST_LOSS, f"expected a loss of at most {MOST_LOSS}"
    assert got <= expected + MOST_MORE, f"expected servers to cost at most {MOST_MORE}"
    return None


if __name__ == "__main__":
    main()
