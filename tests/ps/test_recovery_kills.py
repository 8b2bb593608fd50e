"""A server that is killed at any moment comes back at a moment that its clocks tell exactly, and loses no more."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from checkpoint.zygote import Zygote
from monolith.checkpoint import Saver
from monolith.errors import OpError
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import PsCluster, PsStore
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS
from ps.counting import Counter

IDS = range(60)

_SERVER = """
import json, os, signal, threading
from monolith.deltalog.transports.file_transport import FileAppender, FileTransport
from monolith.ps import PsServer
from monolith.ps.recovery import record_log
from monolith.ps.recovery.config import RecoveryConfig
from monolith.ps.server.client_sessions import OpenCut

options = json.loads(arguments[0])
left = options["calls"]


def die_in(owner, name):
    method = getattr(owner, name)

    def dying(*given, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*given, **named)

    setattr(owner, name, dying)


deaths = {
    "increment": (record_log.RecordBatch, "add"),
    "end of an increment": (FileAppender, "append"),
    "rotation": (FileTransport, "trim"),
    "checkpoint": (OpenCut, "write"),
}
if options["moment"] in deaths:
    die_in(*deaths[options["moment"]])
config = RecoveryConfig(options["record"], interval_seconds=options["interval"], model_dir=options["model"])
server = PsServer(0, num_ps=1, recovery=config)
print(json.dumps([server.address, None if server.recovered is None else server.recovered.rows]), flush=True)
threading.Event().wait()
"""


class Killed:
    """A server in a process that kills itself at a moment, or is killed."""

    def __init__(
        self, zygote: Zygote, folder: Path, *, moment: str = "", calls: int = 0, interval: float = 0.02
    ) -> None:
        self._zygote = zygote
        options = {
            "record": str(folder / "record"),
            "model": str(folder / "model"),
            "moment": moment,
            "calls": calls,
            "interval": interval,
        }
        self.pid = zygote.start(_SERVER, json.dumps(options), beside=True)
        self.address, self.rows = zygote.line()

    def kill(self) -> None:
        self._zygote.end(self.pid)


@contextmanager
def counting(address: str, *, timeout_seconds: float = 60.0) -> Iterator[Counter]:
    with PsCluster([address], timeout_seconds=timeout_seconds) as cluster:
        with use_table_defaults(TableDefaults(store=partial(PsStore, servers=cluster))):
            counter = Counter(IDS)
        with closing(counter.emb.store):
            yield counter


def told_by_rows(counter: Counter) -> tuple[int, set[float]]:
    """What the clock says of worker 0, and how often the rows were counted."""
    session = counter.emb.store.join(0)
    with counter.emb.store.cut() as cut:
        blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
    return session.next_seq, {-float(weight) for block in blocks for weight in block.weights(1).flat}


def train_until_it_dies(address: str, model: Path, *, most_steps: int = 4000) -> int:
    """Counts, and saves now and then; how many batches were applied for sure."""
    done = 0
    try:
        with counting(address, timeout_seconds=1.0) as counter, Saver(model) as saver:
            for step in range(most_steps):
                counter.step()
                done += 1
                if step % 40 == 39:
                    saver.save(counter.state)
    except OpError:
        return done
    raise AssertionError("the server lives")


@pytest.mark.parametrize(
    ("moment", "calls"),
    [
        ("increment", 23),
        pytest.param("end of an increment", 4, marks=pytest.mark.slow),
        pytest.param("rotation", 3, marks=pytest.mark.slow),
        pytest.param("rotation", 6, marks=pytest.mark.slow),
        pytest.param("checkpoint", 2, marks=pytest.mark.slow),
    ],
)
def test_a_kill_inside_of_a_write_keeps_one_consistent_state(
    zygote: Zygote, tmp_path: Path, moment: str, calls: int
) -> None:
    server = Killed(zygote, tmp_path, moment=moment, calls=calls)
    done = train_until_it_dies(server.address, tmp_path / "model")
    server.kill()
    again = Killed(zygote, tmp_path)
    with ExitStack() as ended:
        ended.callback(again.kill)
        with counting(again.address) as counter:
            seen, counts = told_by_rows(counter)
            assert counts <= {float(seen)}
            assert seen <= done + 1
            counter.step()
            assert told_by_rows(counter) == (seen + 1, {seen + 1.0})


@pytest.mark.slow
def test_kills_at_random_times_lose_what_was_not_written_and_nothing_else(zygote: Zygote, tmp_path: Path) -> None:
    rng = random.Random(301)  # noqa: S311 - a fixed seed
    expected, lost = 0, 0
    for _ in range(6):
        server = Killed(zygote, tmp_path, interval=rng.choice([0.005, 0.05]))
        with ExitStack() as ended:
            ended.callback(server.kill)
            with counting(server.address) as counter, Saver(tmp_path / "model") as saver:
                seen, counts = told_by_rows(counter)
                assert counts <= {float(seen)}
                assert seen <= expected
                lost += expected - seen
                expected = seen
                for step in range(rng.randrange(5, 60)):
                    counter.step()
                    expected += 1
                    if rng.random() < 0.05 or step == 3:
                        saver.save(counter.state)
    assert lost < expected + lost  # something was kept each time, or rows would disagree above
