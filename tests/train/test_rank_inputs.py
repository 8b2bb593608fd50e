"""The ranks of a synchronous run read every file once, however many there are after each restart."""

from __future__ import annotations

import gc
import json
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not say that it exports it

from monolith.collective.library import KeyStore, MemoryKeyStore
from monolith.data import JsonLinesDataset
from monolith.data.kafka.position import KafkaPosition, Partition
from monolith.errors import InvalidArgumentError, NotFoundError, UnavailableError
from monolith.tables.batch import BatchStamp
from monolith.train.input import jobs as rank_inputs
from monolith.train.input.jobs import LocalJob, RankInputs
from monolith.train.input.shares import InputShares

NUM_FILES, LINES = 9, 7


@pytest.fixture
def days(tmp_path: Path) -> str:
    for number in range(NUM_FILES):
        lines = [json.dumps({"id": 100 * number + line}) for line in range(LINES)]
        (tmp_path / f"day-{number}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(tmp_path / "day-*.jsonl")


def all_ids() -> Counter[int]:
    return Counter(100 * number + line for number in range(NUM_FILES) for line in range(LINES))


def tcp_store() -> KeyStore:
    store: KeyStore = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), False)
    return store


every_store = pytest.mark.parametrize("make_store", [MemoryKeyStore, tcp_store], ids=["memory", "tcp"])
"""Made in the test, so that its sockets are closed with it."""


@pytest.fixture
def collects() -> Iterator[None]:
    """Queues and their job know each other, so that only the collector finds that nobody else knows them."""
    yield
    gc.collect()


def make(store: KeyStore, rank: int, num_ranks: int, **given: Any) -> RankInputs:
    options: dict[str, Any] = {"applied": dict, "shares_queue": True, "name": "inputs"} | given
    return RankInputs(store, rank=rank, num_ranks=num_ranks, **options)


class Saved:
    """What a checkpoint has."""

    def __init__(self) -> None:
        self.job: str | None = None
        self.applied: dict[int, BatchStamp] = {}
        self.counted: Counter[int] = Counter()


class Rank:
    """Reads batches as one rank of a start would."""

    def __init__(self, start: Start, rank: int) -> None:
        self.start, self.worker = start, rank
        self.inputs = make(
            start.store, rank, start.num_ranks, applied=lambda: {each: s.seq for each, s in start.restored.items()}
        )
        if start.saved.job is None:
            self.inputs.reset()
        else:
            self.inputs.load_state_dict(json.loads(start.saved.job))
            self.inputs.begin(start.restored)
        self.open()

    def open(self) -> None:
        shares = InputShares(worker=self.worker, num_workers=self.start.num_ranks, queues=self.inputs)
        stamp = self.start.applied.get(self.worker)
        self.last = -1 if stamp is None else stamp.seq
        position = self.inputs.position(self.worker, None if stamp is None else stamp.position)
        self.reading = JsonLinesDataset(shares.files(self.start.days)).batch(2).read(position)

    def step(self) -> bool:
        """Whether there was anything to train."""
        batch = next(self.reading, None)
        if batch is None:
            self.inputs.finish(self.worker, self.last)
            number = self.inputs.adopt_worker()
            self.reading.close()
            if number is not None:
                self.worker = number
                self.open()
            return number is not None
        self.last += 1
        self.start.applied[self.worker] = BatchStamp(worker=self.worker, seq=self.last, position=self.reading.position)
        self.start.counted.update(batch["id"].tolist())
        return True


class Start:
    """One start of a run, from what was saved last."""

    def __init__(self, saved: Saved, days: str, num_ranks: int, store: KeyStore | None = None) -> None:
        self.saved, self.days, self.num_ranks = saved, days, num_ranks
        self.store = MemoryKeyStore() if store is None else store
        self.restored = dict(saved.applied)
        self.applied = dict(saved.applied)
        self.counted = saved.counted.copy()
        self.ranks = [Rank(self, rank) for rank in range(num_ranks)]

    def run(self, draw: random.Random, *, steps: int | None = None) -> None:
        """Any rank steps next; every few steps all of it is saved."""
        left = list(self.ranks)
        while left and (steps is None or steps > 0):
            rank = draw.choice(left)
            if not rank.step():
                left.remove(rank)
            if draw.random() < 0.2:
                applied, counted = dict(self.applied), self.counted.copy()
                if left and draw.random() < 0.5 and not (one := draw.choice(left)).step():
                    left.remove(one)  # the queue is saved a little later than the rows
                self.saved.job, self.saved.applied = json.dumps(self.ranks[0].inputs.state_dict()), applied
                self.saved.counted = counted
            steps = None if steps is None else steps - 1
        for rank in self.ranks:
            rank.reading.close()


@pytest.mark.parametrize("seed", range(25))
def test_world_sizes_that_change_train_every_example_once(days: str, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - moments to repeat, not secrets
    saved = Saved()
    for num_ranks in (2, 3, 1, *draw.choices((1, 2, 3, 4), k=3)):
        Start(saved, days, num_ranks).run(draw, steps=draw.randint(1, 12))  # and is killed
    last = Start(saved, days, draw.choice((1, 2, 3)))
    last.run(draw)
    assert last.counted == all_ids()


def test_a_single_process_resumes_from_what_ranks_have_saved_and_back(days: str) -> None:
    draw = random.Random(3)  # noqa: S311 - moments to repeat, not secrets
    saved = Saved()
    while saved.job is None:
        Start(saved, days, 3).run(draw, steps=8)
    alone = LocalJob(applied=lambda: {worker: stamp.seq for worker, stamp in saved.applied.items()})
    alone.load_state_dict(json.loads(saved.job))
    queue = alone.file_queue(days)
    assert queue.take(0, 0) is not None
    saved.job = json.dumps(alone.state_dict())
    start = Start(saved, days, 2)
    start.run(draw)
    assert start.counted == all_ids()


@every_store
@pytest.mark.usefixtures("collects")
def test_ranks_that_take_files_concurrently_get_different_files(days: str, make_store: Callable[[], KeyStore]) -> None:
    store = make_store()
    got: list[list[str]] = [[], [], []]

    def take_all(rank: int) -> None:
        queue = make(store, rank, 3).file_queue(days, seed=5)
        while (part := queue.take(rank, len(got[rank]))) is not None:
            got[rank].append(part.path)

    threads = [threading.Thread(target=take_all, args=(rank,)) for rank in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    taken = [path for paths in got for path in paths]
    assert len(taken) == len(set(taken)) == NUM_FILES


def test_two_ranks_never_resume_the_same_worker(days: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = MemoryKeyStore()
    before = [make(store, rank, 4, name="before") for rank in range(4)]
    for rank, each in enumerate(before):
        each.file_queue(days).take(rank, 0)
    state = before[0].state_dict()
    now = [make(store, rank, 2, name="now") for rank in range(2)]
    for each in now:
        each.load_state_dict(state)
        each.begin({0: stamp(0, b"{}")})
    adopted = [now[0].adopt_worker()]
    assert "rank 0: continues with the input of worker" in caplog.text
    adopted.append(now[1].adopt_worker())
    assert sorted(filter(None, adopted)) == [2, 3]
    assert now[0].adopt_worker() is None
    assert now[1].adopt_worker() is None
    assert caplog.text.count("continues with the input of worker") == 2


def test_an_end_that_the_rows_do_not_have_is_read_again(days: str) -> None:
    store = MemoryKeyStore()
    inputs = make(store, 0, 2)
    inputs.file_queue(days).take(1, 0)
    inputs.finish(1, last=8)
    state = inputs.state_dict()
    for applied, expected in (({1: 7}, 1), ({1: 8}, None)):
        alone = make(MemoryKeyStore(), 0, 1, applied=lambda applied=applied: applied)
        alone.load_state_dict(state)
        assert alone.adopt_worker() == expected


def test_fixed_shares_stay_as_many_with_another_number_of_ranks() -> None:
    inputs = make(MemoryKeyStore(), 0, 2, shares_queue=False)
    state = inputs.state_dict()
    applied = {
        0: stamp(0, b'{"dataset":"files"}'),
        1: stamp(1, b""),
    }
    same = make(MemoryKeyStore(), 0, 2, shares_queue=False)
    same.load_state_dict(state)
    same.begin(applied)
    other = make(MemoryKeyStore(), 0, 3, shares_queue=False)
    other.load_state_dict(state)
    other.begin(applied)
    assert (same.num_shares, other.num_shares) == (2, 2)
    of_one = make(MemoryKeyStore(), 0, 2, shares_queue=False)
    of_one.begin(applied)  # of a process alone
    assert of_one.num_shares == 1
    anew = make(MemoryKeyStore(), 0, 2, shares_queue=False)
    anew.begin({})
    assert anew.num_shares == 2


def test_ranks_adopt_the_fixed_shares_of_more_ranks_each_once() -> None:
    state = make(MemoryKeyStore(), 0, 7, shares_queue=False).state_dict()
    ranks = [make(MemoryKeyStore(), rank, 2, shares_queue=False) for rank in range(2)]
    for inputs in ranks:
        inputs.load_state_dict(state)
        inputs.begin({0: stamp(0, b'{"dataset":"files"}')})
    found = [[inputs.adopt_worker() for inputs in ranks] for _ in range(4)]
    assert found == [[2, 3], [4, 5], [6, None], [None, None]]


def stamp(worker: int, position: bytes) -> BatchStamp:
    return BatchStamp(worker=worker, seq=4, position=position)


def kafka(offsets: dict[int, int], *, turn: int | None = None) -> bytes:
    return KafkaPosition(
        next={Partition("clicks", number): offset for number, offset in offsets.items()},
        turn=None if turn is None else Partition("clicks", turn),
        counts={"clicks": 4},
    ).to_bytes()


def test_topic_partitions_are_reassigned_on_resume() -> None:
    applied = {
        0: stamp(0, kafka({0: 10, 2: 30})),
        1: stamp(1, kafka({1: 20, 3: 40})),
    }
    inputs = make(MemoryKeyStore(), 0, 3, shares_queue=False)
    inputs.load_state_dict(make(MemoryKeyStore(), 0, 2, shares_queue=False).state_dict())
    inputs.begin(applied)
    everything = kafka({0: 10, 1: 20, 2: 30, 3: 40})
    assert inputs.position(0, applied[0].position) == everything
    assert inputs.position(2, None) == everything
    trained = kafka({0: 11})
    assert inputs.position(0, trained) == trained


def test_whose_block_of_a_topic_comes_next_stays_known() -> None:
    own = kafka({0: 10, 2: 30}, turn=2)
    inputs = make(MemoryKeyStore(), 0, 2, shares_queue=False)
    inputs.load_state_dict(inputs.state_dict())
    inputs.begin({0: stamp(0, own), 1: stamp(1, kafka({1: 20, 3: 40}))})
    position = inputs.position(0, own)
    assert position == kafka({0: 10, 1: 20, 2: 30, 3: 40}, turn=2)


@pytest.mark.slow
@every_store
@pytest.mark.usefixtures("collects")
def test_more_file_names_than_a_store_accepts_per_value_travel_in_pieces(
    days: str, make_store: Callable[[], KeyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_inputs, "_MOST_CHARACTERS", 40)
    store = make_store()
    first, second = make(store, 0, 2), make(store, 1, 2)
    paths = [queue.take(rank, 0) for rank, queue in enumerate([first.file_queue(days), second.file_queue(days)])]
    assert [Path(part.path).name for part in paths if part] == ["day-0.jsonl", "day-1.jsonl"]


def test_ranks_with_other_patterns_are_rejected(days: str) -> None:
    store = MemoryKeyStore()
    make(store, 0, 2).file_queue(days).take(0, 0)
    with pytest.raises(InvalidArgumentError, match="of other patterns or another seed"):
        make(store, 1, 2).file_queue([days, "other"]).take(1, 0)


def test_patterns_without_a_match_raise_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        make(MemoryKeyStore(), 0, 2).file_queue(str(tmp_path / "none-*")).take(0, 0)


def test_an_unavailable_store_ends_the_run_and_the_error_names_the_remedy(days: str) -> None:
    class Gone(MemoryKeyStore):
        def check(self, keys: list[str], /) -> bool:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(UnavailableError, match=r"rank 1: .*Connection reset by peer.*--max-restarts"):
        make(Gone(), 1, 2).file_queue(days).take(1, 0)
