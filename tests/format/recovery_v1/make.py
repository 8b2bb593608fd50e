"""Writes the recovery record beside it and what it must recover. Run once; kept so that one can see what it holds.

Two servers, each with a share of two stores of rows, of dense weights, and with a small state of another part. The
release that wrote version 1 ran this; later ones write the record as a delta log.

Usage: python tests/format/recovery_v1/make.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from monolith.ps import DenseClient, PsCluster, PsServer, PsStore
from monolith.ps.recovery import RecoveryConfig
from monolith.tables import ALL_BUCKETS, BatchStamp, Segment, TableConfig, Update
from monolith.tables.formats import BlockKind
from monolith.tables.row_optimizers import Adagrad, Sgd

HERE = Path(__file__).parent
DAY = 86400
STORES = {
    "first": {
        "item": TableConfig([Segment(3, optimizer=Adagrad()), Segment(1)], expire_days=3),
        "user": TableConfig([Segment(2, optimizer=Adagrad())], expire_days=3),
    },
    "second": {"user": TableConfig([Segment(2, optimizer=Sgd())])},
}
PART = {0: b"state of server 0", 1: b"\x00\xff" * 20}


@contextmanager
def servers(folder: Path) -> Iterator[list[PsServer]]:
    """The servers of a record, which write when they are asked to."""
    options = RecoveryConfig(str(folder), interval_seconds=3600.0)
    with ExitStack() as stack:
        yield [stack.enter_context(PsServer(index, num_ps=2, recovery=options)) for index in range(2)]


@contextmanager
def store_of(addresses: list[str], name: str) -> Iterator[PsStore]:
    """One of the stores."""
    with PsCluster(addresses) as cluster, closing(PsStore(STORES[name], servers=cluster, name=name)) as store:
        yield store


class Dense(nn.Module):
    """Weights whose optimizer has a state."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(6, 4), nn.Linear(4, 1)


def train(store: PsStore, worker: int, steps: int) -> None:
    """Some batches, whose times go on so that old rows expire."""
    session = store.join(worker)
    previous = session.next_seq - 1
    generator = torch.Generator().manual_seed(100 * worker + previous + 1)
    tables = len(store.schema.names)
    for seq in range(previous + 1, previous + 1 + steps):
        ids = torch.randint(0, 60, (10 * tables,), generator=generator)
        splits = torch.arange(tables + 1) * 10
        stamp = BatchStamp(worker=worker, seq=seq, position=b"at %d" % seq, event_time_ms=seq)
        plan = session.plan(ids, splits, stamp=stamp)
        session.read(plan, after=seq - 1, step=0, train=True).result()
        rates = torch.ones(sum(len(config.segments) for config in STORES[store.name].values()))
        rule = Update(previous=seq - 1, step=0, learning_rates=rates, times=1_700_000_000 + seq * DAY // 2)
        session.apply([(plan, torch.randn(plan.num_values, generator=generator))], rule).result()


def contents(addresses: list[str]) -> dict[str, Any]:
    """All state that clients of the servers can see."""
    found: dict[str, Any] = {}
    for name in STORES:
        with store_of(addresses, name) as store, store.cut() as cut:
            blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
            found[name] = {
                "rows": {
                    f"{block.table}/{int(key)}": [int(block.times[row]), block.payload[row].tobytes().hex()]
                    for block in blocks
                    for row, key in enumerate(block.keys)
                },
                "clocks": [
                    [clock.buckets.start, clock.buckets.stop, {str(w): plain(s) for w, s in clock.stamps.items()}]
                    for clock in cut.applied
                ],
                "newest_times": [list(moment.newest_times) for moment in store.moments()],
                "uninitialized": store.owners.uninitialized(),
            }
    torch.manual_seed(2)
    model = Dense()  # the servers' weights count, not these
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    with PsCluster(addresses) as cluster, DenseClient(model, adam, cluster) as client:
        state = client.freeze().gather()
        found["dense"] = {
            "weights": {name: weight.tolist() for name, weight in sorted(state.weights.items())},
            "clocks": [{str(worker): plain(stamp) for worker, stamp in clock.items()} for clock in state.clocks],
        }
        client.pull()
        give_gradients(model, 9)
        client.push(BatchStamp(worker=0, seq=3), step=9).result()  # the next step shows the state of the optimizer
        found["dense"]["next"] = {
            name: weight.tolist() for name, weight in sorted(client.freeze().gather().weights.items())
        }
    return found


def plain(stamp: BatchStamp) -> list[Any]:
    """Returns a stamp for JSON."""
    return [stamp.worker, stamp.seq, stamp.position.hex(), stamp.event_time_ms]


def give_gradients(model: nn.Module, seed: int) -> None:
    """Sets gradients that only depend on the seed."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


def main(folder: Path, expected: Path) -> None:
    """Writes the record and the expected contents."""
    with servers(folder / "at work") as running:
        addresses = [server.address for server in running]
        for index, server in enumerate(running):
            server.add_recovered_part("note", lambda index=index: PART[index], lambda _: None)  # type: ignore[misc]

        def write() -> None:
            for server in running:
                while not server.write_record():
                    pass

        torch.manual_seed(1)
        model = Dense()
        adam = torch.optim.Adam(model.parameters(), lr=0.1)
        with ExitStack() as stack:
            first, second = (stack.enter_context(store_of(addresses, name)) for name in STORES)
            cluster = stack.enter_context(PsCluster(addresses))
            client = stack.enter_context(DenseClient(model, adam, cluster))
            for seq in range(3):
                train(first, 0, 2)
                train(second, 3, 1)
                if seq != 1:
                    give_gradients(model, seq)
                    client.push(BatchStamp(worker=0, seq=seq, position=b"p"), step=seq).result()
                write()
            first.owners.set_initialized()
            second.load([], buckets=ALL_BUCKETS, replace=True)
            second.resume(applied=[], generation=0)
            train(second, 4, 3)
            train(first, 1, 3)
            write()
            assert first.erase("item", torch.tensor([3, 5, 7])) >= 1
            write()
        shutil.copytree(folder / "at work", folder / "record")
    shutil.rmtree(folder / "at work")
    shutil.copytree(folder / "record", folder / "again")
    with servers(folder / "again") as running:
        found = contents([server.address for server in running])
    shutil.rmtree(folder / "again")
    expected.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def counts(found: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of rows of each store."""
    return {name: len(found[name]["rows"]) for name in STORES}


if __name__ == "__main__":
    shutil.rmtree(HERE / "record", ignore_errors=True)
    main(HERE, HERE / "contents.json")
