"""Workers that share a queue of files read every sample once, whoever is slow, stops, or comes back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.queued_lines import ACTIONS, FILES, Workers, lines_of, worker
from monolith.checkpoint import Saver, TrainState
from monolith.data import (
    InMemoryDataset,
    LocalFileQueue,
    ParquetDataset,
    QueuedFiles,
    RecordDataset,
    SharedFileQueue,
    read_examples,
    write_examples,
)
from monolith.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)

pytestmark = pytest.mark.filterwarnings("ignore:monolith.data.SharedFileQueue is deprecated")


@given(ACTIONS, st.integers(1, 3), st.booleans(), st.sampled_from([None, 3]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_lost_or_duplicated_whichever_worker_restores_its_saved_position(
    actions: list[tuple[int, str]], cycle_length: int, is_restored: bool, seed: int | None
) -> None:
    queue = LocalFileQueue(FILES, num_workers=3, seed=seed)
    workers = Workers([queue] * 3, cycle_length)
    for number, action in actions:
        workers.act(number, action)
    if is_restored:  # the whole run goes on elsewhere, from what was saved
        state = json.loads(json.dumps(queue.state_dict()))
        elsewhere = LocalFileQueue(FILES, num_workers=3, seed=seed)
        elsewhere.load_state_dict(state)
        workers.queues = [elsewhere] * 3
        for number in range(3):
            workers.act(number, "crash")
    workers.read_to_the_end()
    workers.require_each_line_once()


@given(ACTIONS, st.integers(1, 2))
@settings(max_examples=40)
def test_what_a_lost_worker_had_not_read_is_read_by_the_others(
    actions: list[tuple[int, str]], cycle_length: int
) -> None:
    queue = LocalFileQueue(FILES, num_workers=3)
    workers = Workers([queue] * 3, cycle_length)
    for number, action in actions:
        if action == "save" or len(workers.done[number]) < 8:
            workers.act(number, "save" if action == "save" else "read")
    for number in (2, 1):  # what is given back is taken, and given back again
        position = workers.forget_unsaved(number)
        given = queue.give_back(number, position)
        assert queue.give_back(number, position) == 0
        assert given <= len(FILES)
        with pytest.raises(FailedPreconditionError, match=f"worker {number} of a file queue gave back its files"):
            worker(queue, number, cycle_length).read(position).__next__()
    alone = LocalFileQueue(FILES, num_workers=1)
    alone.load_state_dict(queue.state_dict())
    position = workers.forget_unsaved(0)
    workers.done[0] += worker(alone, 0, cycle_length).read(position)
    workers.require_each_line_once()


def test_a_slow_worker_reads_fewer_files() -> None:
    files = [f"f{number}:1" for number in range(60)]
    queue = LocalFileQueue(files, num_workers=3)
    read: list[list[str]] = [[], [], []]

    def run(number: int) -> None:
        for line in worker(queue, number):
            read[number].append(line)
            time.sleep(0.02 if number == 2 else 0.001)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chain(*read)) == lines_of(files)
    assert 0 < len(read[2]) < len(read[0])


def test_patterns_are_looked_up_when_files_run_out(tmp_path: Path) -> None:
    for name in ("a1:1", "a0:2"):
        (tmp_path / name).touch()
    queue = LocalFileQueue([f"{tmp_path}/a*", f"{tmp_path}/nothing*", f"{tmp_path}/[ab]*"], num_workers=1)
    reading = worker(queue, 0).read()
    assert [next(reading) for _ in range(3)] == ["a0/0", "a0/1", "a1/0"]
    assert queue.waiting() == 0
    (tmp_path / "b:2").touch()  # comes up while the first files are read
    assert list(reading) == ["b/0", "b/1"]
    (tmp_path / "b2:2").touch()
    assert list(worker(queue, 0).read()) == ["a0/0", "a0/1", "a1/0", "b/0", "b/1"]  # the same again


def test_every_epoch_hands_out_every_file_in_an_order_of_its_own() -> None:
    queue = LocalFileQueue(FILES, num_workers=2, seed=1)
    first = worker(queue, 0).repeat(3).read()
    lines: Counter[str] = Counter(next(first) for _ in range(20))
    saved = first.position
    lines.update(worker(queue, 1).repeat(3))
    again = worker(queue, 0).repeat(3).read(saved)
    lines.update(again)
    assert lines == Counter(dict.fromkeys(lines_of(FILES), 3))
    orders = [[queue.take(0, turn, epoch=epoch) for turn in range(3)] for epoch in (10, 11)]
    assert orders[0] != orders[1]


def test_pipelines_and_formats_take_files_out_of_a_queue(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number in range(6):
        values = [f"{number}/{row}".encode() for row in range(50)]
        write_examples(tmp_path / f"{number}.tfrecord", values, "tfrecord")
        pq.write_table(pa.table({"x": [100 * number + row for row in range(50)]}), tmp_path / f"{number}.parquet")
    queue = LocalFileQueue(f"{tmp_path}/*.tfrecord", num_workers=2)

    def pipeline(number: int) -> Any:
        files = QueuedFiles(queue, worker=number)
        return (
            RecordDataset(files, "tfrecord", sample="plaintext", cycle_length=2)
            .shuffle(70, seed=1)
            .batch(16)
            .prefetch(2)
        )

    seen: list[bytes] = []
    reading = pipeline(0).read()
    for _ in range(4):
        seen += next(reading)
    saved = reading.position
    next(reading)  # is read again after the restart
    reading.close()
    for batch in pipeline(1):
        seen += batch
    with pipeline(0).read(saved) as again:
        for batch in again:
            seen += batch
    assert sorted(seen) == sorted(
        record for path in tmp_path.glob("*.tfrecord") for record in read_examples(path, "tfrecord", sample="plaintext")
    )
    columns = LocalFileQueue(f"{tmp_path}/*.parquet", num_workers=2)
    datasets = [ParquetDataset(QueuedFiles(columns, worker=number), block_rows=16) for number in range(2)]
    first = datasets[0].read()
    rows: list[Any] = [*next(first)["x"].tolist()]  # type: ignore[union-attr]
    assert columns.give_back(0, first.position) == 1
    rows += [row for batch in datasets[1] for row in batch["x"].tolist()]  # type: ignore[union-attr]
    assert sorted(rows) == sorted(100 * number + row for number in range(6) for row in range(50))


KILLED_AND_STARTED_AGAIN = """
import os, signal, sys, time, warnings
from pathlib import Path
from monolith.data import QueuedFiles, RecordDataset, SharedFileQueue

warnings.simplefilter("ignore", DeprecationWarning)
folder = Path(sys.argv[1])

def work(number):
    queue = SharedFileQueue(folder / "log", f"{folder}/in/*", num_workers=3)
    out = folder / f"out{number}"
    lines = out.read_text().splitlines() if out.exists() else []
    position = lines[-1].split("\\t")[0].encode() if lines else None
    dataset = RecordDataset(QueuedFiles(queue, worker=number), "plain", sample="plaintext")
    with dataset.read(position) as reading, out.open("ab", buffering=0) as file:
        for number, block in enumerate(reading):
            # Work and position in one write, as a checkpoint has them.
            file.write(reading.position + b"\\t" + b",".join(block) + b"\\n")
            while number > 5 and not (folder / "all").exists():
                time.sleep(0.002)  # there must be something left to be killed at

def start(number):
    child = os.fork()  # sooner than a new interpreter, and nothing has started threads
    if child == 0:
        work(number)
        os._exit(0)
    return child

def size(number):
    out = folder / f"out{number}"
    return out.stat().st_size if out.exists() else 0

children, killed = [start(number) for number in range(3)], 0
for round in range(6):
    victim = round % 3
    before, until = size(victim), time.monotonic() + 5
    while size(victim) == before and time.monotonic() < until:
        time.sleep(0.001)
    os.kill(children[victim], signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(children[victim], 0)[1])
    children[victim] = start(victim)
(folder / "all").touch()
print([os.waitpid(child, 0)[1] for child in children], killed)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_processes_that_are_killed_and_started_again_read_every_record_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(200):
        write_examples(tmp_path / "in" / f"{number:03}", [f"{number}-{row}".encode() for row in range(3)], "plain")
    command = [sys.executable, "-c", KILLED_AND_STARTED_AGAIN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.stderr) == ("[0, 0, 0] 6\n", "")
    records = [
        record
        for number in range(3)
        for line in (tmp_path / f"out{number}").read_text().splitlines()
        for record in line.split("\t")[1].split(",")
    ]
    assert sorted(records) == sorted(f"{number}-{row}" for number in range(200) for row in range(3))


def test_queues_of_one_log_see_what_the_others_took(tmp_path: Path) -> None:
    log = tmp_path / "log"
    one, other = (SharedFileQueue(log, FILES, num_workers=2) for _ in range(2))
    names = [one.take(0, 0), other.take(1, 0), one.take(0, 1), other.take(0, 1), other.take(1, 1)]
    assert [part.path for part in names if part] == ["f0:0", "f1:1", "f2:2", "f2:2", "f3:3"]
    later = SharedFileQueue(log, FILES, num_workers=3)
    assert [part.path for turn in range(2) if (part := later.take(1, turn))] == ["f1:1", "f3:3"]
    assert later.waiting() == 5


def test_half_a_line_at_the_end_of_a_log_is_of_one_that_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    queue = SharedFileQueue(log, FILES, num_workers=1)
    assert queue.take(0, 0)
    whole = log.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1])):
        log.write_bytes(whole[:-cut])
        again = SharedFileQueue(log, FILES, num_workers=1)
        assert again.take(0, 0) == queue.take(0, 0)
        assert log.read_bytes() == whole
    log.write_bytes(whole[:10])
    assert SharedFileQueue(log, FILES, num_workers=1).take(0, 0)
    assert log.read_bytes() == whole


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    queue = SharedFileQueue(log, FILES, num_workers=1)
    queue.take(0, 0)
    whole = log.read_bytes()
    at = whole.index(b"take")
    log.write_bytes(whole[:at] + b"T" + whole[at + 1 :])
    with pytest.raises(DataLossError, match=r"file queue '.*log': offset \d+: damaged"):
        SharedFileQueue(log, FILES, num_workers=1)
    log.write_bytes(whole[:30])
    with pytest.raises(DataLossError, match="has become shorter"):
        queue.take(0, 1)


def test_a_log_of_other_files_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    SharedFileQueue(log, FILES, num_workers=1)
    with pytest.raises(InvalidArgumentError, match="of other patterns or another seed"):
        SharedFileQueue(log, FILES[1:], num_workers=1)
    with pytest.raises(InvalidArgumentError, match="of other patterns or another seed"):
        SharedFileQueue(log, FILES, num_workers=1, seed=1)


def test_a_worker_that_waits_too_long_for_another_process_raises(tmp_path: Path) -> None:
    log = tmp_path / "log"
    one = SharedFileQueue(log, FILES, num_workers=1)
    other = SharedFileQueue(log, FILES, num_workers=1, timeout_seconds=0.02)
    with one._exclusive(), pytest.raises(DeadlineExceededError, match=r"another process has held it for 0\.02 s"):
        other.take(0, 0)
    assert other.take(0, 0)


def test_files_of_removed_workers_are_not_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    queue = SharedFileQueue(log, FILES, num_workers=3)
    for number in range(3):
        queue.take(number, 0)
    with pytest.raises(FailedPreconditionError, match="files are with worker 1, 2 of before"):
        SharedFileQueue(log, FILES, num_workers=1)
    assert queue.give_back(1) == queue.give_back(2) == 1
    alone = SharedFileQueue(log, FILES, num_workers=1)
    assert list(worker(alone, 0)) == [f"f{n}/{line}" for n in (0, 1, 2, *range(3, 9)) for line in range(n % 4)]
    with pytest.raises(InvalidArgumentError, match="of 1 workers: there is no worker 1"):
        alone.take(1, 0)


def test_a_queue_older_than_a_position_is_rejected() -> None:
    queue = LocalFileQueue(FILES, num_workers=1)
    before = queue.state_dict()
    reading = worker(queue, 0, 2).read()
    next(reading)
    after = queue.state_dict()
    fresh = LocalFileQueue(FILES, num_workers=1)
    fresh.load_state_dict(before)
    with pytest.raises(FailedPreconditionError, match="the state of the queue is older than the position"):
        worker(fresh, 0, 2).read(reading.position)
    fresh.load_state_dict(after)
    assert list(worker(fresh, 0, 2).read(reading.position)) == list(reading)
    with pytest.raises(InvalidArgumentError, match="a queue of other patterns"):
        LocalFileQueue(FILES[1:], num_workers=1).load_state_dict(after)


def test_the_state_of_more_workers_is_refused_and_changes_nothing() -> None:
    three = LocalFileQueue(FILES, num_workers=3)
    for number in range(3):
        three.take(number, 0)
    alone = LocalFileQueue(FILES, num_workers=1)
    with pytest.raises(FailedPreconditionError, match="files are with worker 1, 2 of before"):
        alone.load_state_dict(three.state_dict())
    assert list(worker(alone, 0)) == lines_of(FILES)
    assert three.give_back(1) == three.give_back(2) == 1
    again = LocalFileQueue(FILES, num_workers=1)
    again.load_state_dict(three.state_dict())
    assert sorted(worker(again, 0)) == lines_of(FILES)


def test_a_checkpoint_keeps_the_queue_alongside_the_positions(tmp_path: Path) -> None:
    queue = LocalFileQueue(FILES, num_workers=1)
    state = TrainState(extra={"files": queue})
    reading = worker(queue, 0).read()
    lines = [next(reading) for _ in range(4)]
    state.positions["train"] = reading.position
    with Saver(tmp_path) as saver:
        saver.save(state)
    again = LocalFileQueue(FILES, num_workers=1)
    restored = TrainState(extra={"files": again})
    with Saver(tmp_path) as saver:
        assert saver.restore(restored) is not None
    lines += worker(again, 0).read(restored.positions["train"])
    assert sorted(lines) == lines_of(FILES)


def test_positions_of_others_and_of_pipelines_cannot_be_given_back() -> None:
    queue = LocalFileQueue(FILES, num_workers=2)
    reading = worker(queue, 0).read()
    next(reading)
    with pytest.raises(InvalidArgumentError, match="saved with worker 0, this dataset has 1"):
        queue.give_back(1, reading.position)
    batches = worker(queue, 0).batch(2).read()
    next(batches)
    with pytest.raises(InvalidArgumentError, match="saved by a dataset of kind 'batch'"):
        queue.give_back(0, batches.position)
    with pytest.raises(InvalidArgumentError, match="saved with worker 0, this dataset has 1"):
        worker(queue, 1).read(reading.position)
    in_memory = InMemoryDataset("ab").read().position
    with pytest.raises(InvalidArgumentError):
        worker(queue, 1).read(in_memory)


def test_no_file_at_all_is_an_error(tmp_path: Path) -> None:
    queue = LocalFileQueue([f"{tmp_path}/*", f"{tmp_path}/[x]"], num_workers=1)
    with pytest.raises(NotFoundError, match="no file matches"):
        queue.take(0, 0)
    with pytest.raises(ValueError, match="num_workers"):
        LocalFileQueue([], num_workers=0)
