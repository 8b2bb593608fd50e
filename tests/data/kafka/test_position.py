"""The arithmetic of offsets, without a broker: positions, redelivery, and blocks that do not depend on arrival."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.kafka_chunks import chunk_of
from monolith.data.kafka import KafkaPosition, Partition, merge_positions
from monolith.data.kafka.fetching import FixedOrder, fresh
from monolith.data.kafka.messages import Chunk
from monolith.data.kafka.reading import FetchedRecords, RecordGatherer
from monolith.data.records.records import Places, Records
from monolith.errors import InvalidArgumentError

PARTITIONS = st.builds(Partition, st.sampled_from(["clicks", "views", "ü/{}"]), st.integers(0, 5))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**62), max_size=8)


@given(
    OFFSETS, OFFSETS, st.none() | PARTITIONS, st.dictionaries(st.sampled_from(["clicks", "views"]), st.integers(1, 9))
)
def test_a_position_round_trips_through_its_bytes(
    following: dict[Partition, int], ends: dict[Partition, int], turn: Partition | None, counts: dict[str, int]
) -> None:
    position = KafkaPosition(next=following, ends=ends, inside=ends, turn=turn, counts=counts)
    assert KafkaPosition.from_bytes(position.to_bytes()) == position
    turned_around = KafkaPosition(
        next=dict(reversed(following.items())),
        ends=dict(reversed(ends.items())),
        inside=dict(reversed(ends.items())),
        turn=turn,
        counts=counts,
    )
    assert turned_around.to_bytes() == position.to_bytes()


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"kafka":1}',
        b'{"kafka":1,"next":{"clicks":3},"partitions":{}}',
        b'{"kafka":1,"next":{"clicks":{"x":3}},"partitions":{}}',
        b'{"kafka":1,"next":{"clicks":{"0":-1}},"partitions":{}}',
        b'{"kafka":1,"next":{"clicks":{"0":true}},"partitions":{}}',
        b'{"kafka":1,"next":{"clicks":{"0":1.5}},"partitions":{}}',
        b'{"kafka":1,"next":{},"partitions":{},"turn":["clicks"]}',
        b'{"kafka":2,"next":{},"partitions":{}}',
        json.dumps({"files": ["a"], "offset": 3}).encode(),
    ],
)
def test_what_is_no_position_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="position in Kafka topics"):
        KafkaPosition.from_bytes(wrong)


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 30))
def test_a_message_is_fresh_once(offsets: list[int], floor: int) -> None:
    expected, following = [], floor
    for offset in offsets:
        expected.append(offset >= following)
        following = max(following, offset + 1)
    assert fresh(np.array(offsets, dtype=np.int64), floor).tolist() == expected if offsets else True


@given(st.lists(OFFSETS, max_size=4))
def test_merged_positions_are_the_furthest_of_each_partition(workers: list[dict[Partition, int]]) -> None:
    merged = KafkaPosition.from_bytes(merge_positions(KafkaPosition(next=each).to_bytes() for each in workers))
    assert merged.next == {
        partition: max(each[partition] for each in workers if partition in each)
        for partition in {partition for each in workers for partition in each}
    }


class Log:
    """Partitions with known ends, fetched in pieces of random sizes and order: what a broker does to a reader."""

    def __init__(self, contents: dict[Partition, list[int]], seed: int, following: dict[Partition, int]) -> None:
        self.waiting = {each: [o for o in offsets if o >= following[each]] for each, offsets in contents.items()}
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.paused: set[Partition] = set()

    def is_complete(self, partition: Partition) -> bool:
        return not self.waiting[partition]

    def pause(self, wanted: set[Partition]) -> None:
        self.paused = wanted

    def fetch(self) -> list[Chunk]:
        open_ones = [each for each in self.waiting if self.waiting[each] and each not in self.paused]
        partition = self.random.choice(open_ones)
        count = self.random.randint(1, 7)
        taken, self.waiting[partition] = self.waiting[partition][:count], self.waiting[partition][count:]
        return [chunk_of(partition, [f"{partition}/{each}".encode() for each in taken], np.array(taken))]


def blocks_of(
    contents: dict[Partition, list[int]],
    *,
    seed: int,
    block: int,
    following: dict[Partition, int],
    turn: Partition | None = None,
    budget: int = 1 << 20,
) -> list[tuple[list[bytes | None], Partition, dict[Partition, int]]]:
    """Every block, and behind it whose turn it is and where each partition goes on."""
    log = Log(contents, seed, following)
    order = FixedOrder(log, list(contents), block_messages=block, buffer_bytes=budget)  # type: ignore[arg-type]
    if turn is not None:
        order.start_with(turn)
    following = dict(following)
    blocks = []
    while True:
        if taken := order.take():
            for chunk in taken:
                following[chunk.partition] = int(chunk.offsets[-1]) + 1
            blocks.append(([v for chunk in taken for v in chunk.values], order.turn, dict(following)))
        elif order.is_over():
            return blocks
        else:
            order.add(log.fetch())


CONTENTS = st.dictionaries(
    st.builds(Partition, st.just("clicks"), st.integers(0, 4)),
    st.sets(st.integers(0, 60), max_size=30).map(sorted),  # with gaps, as compaction and transactions leave them
    min_size=1,
)


@given(CONTENTS, st.integers(1, 9), st.integers(0, 1000), st.sampled_from([64, 400, 1 << 20]))
def test_blocks_of_fixed_order_do_not_depend_on_arrival(
    contents: dict[Partition, list[int]], block: int, seed: int, budget: int
) -> None:
    start = dict.fromkeys(contents, 0)
    blocks = blocks_of(contents, seed=seed, block=block, following=start, budget=budget)
    assert blocks == blocks_of(contents, seed=seed + 1, block=block, following=start)
    taken = [value for values, _, _ in blocks for value in values]
    everything = [f"{each}/{offset}".encode() for each, offsets in contents.items() for offset in offsets]
    assert sorted(map(str, taken)) == sorted(map(str, everything))


@given(CONTENTS, st.integers(1, 9), st.integers(0, 1000), st.data())
def test_fixed_order_resumes_after_any_block_as_if_it_had_never_stopped(
    contents: dict[Partition, list[int]], block: int, seed: int, data: st.DataObject
) -> None:
    blocks = blocks_of(contents, seed=seed, block=block, following=dict.fromkeys(contents, 0))
    if not blocks:
        return
    stopped = data.draw(st.integers(0, len(blocks) - 1))
    _, turn, following = blocks[stopped]
    assert blocks_of(contents, seed=seed + 7, block=block, following=following, turn=turn) == blocks[stopped + 1 :]


MESSAGES = st.dictionaries(
    st.builds(Partition, st.just("clicks"), st.integers(0, 3)),
    st.lists(st.integers(0, 4), max_size=8),  # how many records each message holds
    min_size=1,
)


class Arriving:
    """Messages of many records, in pieces of random sizes and order."""

    def __init__(
        self,
        contents: dict[Partition, list[int]],
        seed: int,
        *,
        following: dict[Partition, int],
        inside: dict[Partition, int],
    ) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.contents = contents
        self.next = dict(following)
        self.to_skip = {(each, following[each]): count for each, count in inside.items()}

    def piece(self) -> FetchedRecords | None:
        left = [each for each, sizes in self.contents.items() if self.next[each] < len(sizes)]
        if not left:
            return None
        chunks: list[tuple[Partition, range]] = []
        for _ in range(self.random.randint(1, 3)):
            partition = self.random.choice(left)
            begin = self.next[partition]
            end = min(len(self.contents[partition]), begin + self.random.randint(1, 3))
            if end > begin:
                chunks.append((partition, range(begin, end)))
                self.next[partition] = end
        rows = [
            (number, offset, f"{partition}/{offset}/{record}".encode())
            for number, (partition, offsets) in enumerate(chunks)
            for offset in offsets
            for record in range(self.contents[partition][offset])
        ]
        records = Records.from_list([record for _, _, record in rows])
        places = Places(
            tuple(f"{partition}, offset" for partition, _ in chunks),
            np.array([number for number, _, _ in rows], np.int64),
            np.array([offset for _, offset, _ in rows], np.int64),
        )
        whole = Records(records.buffer, records.spans, places=places)
        through = {partition: offsets.stop for partition, offsets in chunks}
        piece = FetchedRecords(whole, tuple(partition for partition, _ in chunks), through)
        return piece.without_first(self.to_skip) if self.to_skip else piece


@given(MESSAGES, st.integers(1, 7), st.integers(0, 1000), st.data())
def test_exact_blocks_resume_after_any_of_them_in_any_order_of_arrival(
    contents: dict[Partition, list[int]], size: int, seed: int, data: st.DataObject
) -> None:
    everything = sorted(
        f"{each}/{offset}/{record}".encode()
        for each, sizes in contents.items()
        for offset, count in enumerate(sizes)
        for record in range(count)
    )
    seen: list[bytes] = []
    following, inside = dict.fromkeys(contents, 0), dict[Partition, int]()
    for attempt in range(4):
        arriving = Arriving(contents, seed + attempt, following=following, inside=inside)
        gathering = RecordGatherer(size, drop_remainder=False)
        for _ in range(data.draw(st.integers(0, 4)) if attempt < 3 else 1000):
            if (made := gathering.next_block(arriving.piece, lambda: 0)) is None:
                break
            block, behind = made
            seen += list(block)
            following.update(behind.following)
            inside = {each: n for each, n in inside.items() if each not in behind.following} | behind.inside
    assert sorted(seen) == everything


def test_what_was_gathered_is_dropped_when_partitions_move() -> None:
    """The third piece comes after a change; what was gathered before it is fetched again by whoever has it now."""
    partition = Partition("clicks", 0)
    pieces = [
        FetchedRecords(
            Records(one.buffer, one.spans, places=Places(("x",), np.zeros(1, np.int64), np.array([n]))),
            (partition,),
            {partition: n + 1},
        )
        for n in (0, 1, 0, 1, 2)
        for one in [Records.from_list([b"%d" % n])]
    ]
    fetched = 0

    def piece() -> FetchedRecords:
        nonlocal fetched
        fetched += 1
        return pieces[fetched - 1]

    made = RecordGatherer(3, drop_remainder=False).next_block(piece, lambda: int(fetched > 2))
    assert made is not None
    assert list(made[0]) == [b"0", b"1", b"2"]
    assert made[1].following == {partition: 3}


def test_a_partition_that_runs_ahead_is_paused() -> None:
    contents = {Partition("clicks", 0): list(range(5)), Partition("clicks", 1): list(range(500))}
    log = Log(contents, 0, dict.fromkeys(contents, 0))
    order = FixedOrder(log, list(contents), block_messages=5, buffer_bytes=4000)  # type: ignore[arg-type]
    held = 0
    while log.waiting[Partition("clicks", 1)] and Partition("clicks", 1) not in log.paused:
        order.add([chunk_of(Partition("clicks", 1), [b"x"] * 5, np.arange(held, held + 5))])
        held += 5
    assert 20 <= held <= 40
    assert Partition("clicks", 0) not in log.paused
