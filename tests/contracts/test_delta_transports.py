"""What every transport of a delta log promises: one order, no lost record, one writer at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from deltalog.increments import PART, increment, opening
from kafka_cluster import KafkaCluster
from monolith.deltalog import Claim, DeltaLog, Replay, Tail, Transport
from monolith.errors import AbortedError, NotFoundError, UnavailableError
from other_packages import EXAMPLE, installed

MakeTransport = Callable[[], Transport]
"""Another process's view of the same log."""
NAMES = itertools.count()


class Site(NamedTuple):
    """Where a test has its log."""

    folder: Path
    name: str
    brokers: str


TRANSPORTS: dict[str, Callable[[Site], Transport]] = {
    "files": lambda site: DeltaLog(site.folder / "log", segment_bytes=1000).transport,
    "objects": lambda site: DeltaLog(f"memory://{site.name}", poll_seconds=0.01).transport,
    "local objects": lambda site: DeltaLog(f"local://{site.folder}/log", poll_seconds=0.01).transport,
    "kafka": lambda site: DeltaLog(f"kafka://{site.brokers}/{site.name}", message_bytes=150).transport,
    "another package": lambda site: DeltaLog(f"mem2://{site.folder}/log", segment_bytes=1000).transport,
}
"""A new transport is tested by one line here."""


@pytest.fixture(scope="module")
def brokers(request: pytest.FixtureRequest) -> Iterator[str]:
    """Addresses of a Kafka cluster, which is started if tests of it were selected."""
    if not any("[kafka" in item.name for item in request.session.items if item.path == request.path):
        yield ""
        return
    with KafkaCluster() as running:
        yield running.brokers


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] if name == "kafka" else []) for name in TRANSPORTS])
def make(request: pytest.FixtureRequest, tmp_path: Path, brokers: str) -> Iterator[MakeTransport]:
    made: list[Transport] = []
    site = Site(tmp_path, f"log{next(NAMES)}", brokers)

    def opened() -> Transport:
        made.append(TRANSPORTS[request.param](site))
        return made[-1]

    with installed(EXAMPLE):
        yield opened
    for each in made:
        each.close()


def write(transport: Transport, numbers: range, *, writer: int = 7, part: str = PART) -> int:
    """Opens the part, appends so many increments behind the opening; the number of the opening."""
    claims: list[Claim] = []

    def made(claim: Claim) -> bytes:
        claims.append(claim)
        return opening(claim, writer=writer, part=part)

    appender = transport.open(part, made)
    claim = claims[-1]
    for number in range(claim.number + 1, claim.number + 1 + len(numbers)):
        record = increment(number, generation=claim.generation, writer=writer, part=part, payload=b"x" * number)
        appender.append(number, record.encode())
    appender.close()
    return claim.number


def counted(tail: Tail, *, part: str = PART, begin: int | None = None) -> list[tuple[int, int]]:
    """Generation and number of what a reader applies."""
    machine = Replay(part, place="log", next_number=begin)
    outcomes = []
    while (record := tail.next()) is not None:
        outcomes.append(machine.take(record))
    assert machine.wrong is None, machine.wrong
    return [(each.increment.generation, each.increment.number) for each in outcomes if each.verdict.counts]  # type: ignore[union-attr]


def test_what_was_appended_is_read_in_order_by_others(make: MakeTransport) -> None:
    assert write(make(), range(12)) == 0
    other = make()
    tail = other.tail(PART, None)
    assert counted(tail) == [(1, number) for number in range(13)]
    tail.close()
    assert other.parts() == [PART]
    extent = other.extent(PART)
    assert extent is not None
    assert tuple(extent) == (0, 13, 1, 7)


def test_a_tail_starts_at_any_number_and_resumes(make: MakeTransport) -> None:
    transport = make()
    write(transport, range(9))
    tail = make().tail(PART, 6)
    assert counted(tail, begin=6) == [(1, 6), (1, 7), (1, 8), (1, 9)]
    assert tail.bytes_behind() == 0
    write(transport, range(2), writer=8)
    tail.wait(10.0, threading.Event())
    assert tail.bytes_behind() > 0
    assert counted(tail, begin=10) == [(2, 10), (2, 11), (2, 12)]
    tail.close()


def test_waiting_ends_when_stop_is_set(make: MakeTransport) -> None:
    write(make(), range(1))
    tail = make().tail(PART, 2)
    assert tail.next() is None
    stop = threading.Event()
    waiting = threading.Thread(target=tail.wait, args=(600.0, stop))
    waiting.start()
    stop.set()
    waiting.join(30)
    assert not waiting.is_alive()
    tail.close()


def test_a_missing_part_is_empty_and_may_appear_later(make: MakeTransport) -> None:
    transport = make()
    write(transport, range(0), part="dense")
    assert transport.extent(PART) is None
    tail = make().tail(PART, None)
    assert tail.next() is None
    write(transport, range(1))
    tail.wait(10.0, threading.Event())
    assert counted(tail) == [(1, 0), (1, 1)]
    assert transport.parts() == ["dense", PART]
    tail.close()


def test_a_missing_log_is_named(make: MakeTransport) -> None:
    with pytest.raises(NotFoundError, match="log"):
        make().parts()


def test_a_replaced_writer_cannot_append(make: MakeTransport) -> None:
    first, second = make(), make()
    old = first.open(PART, opening)
    old.append(1, increment(1).encode())
    assert write(second, range(1), writer=8) == 2
    with pytest.raises(AbortedError, match="another writer has the part now, with generation 2"):
        old.append(2, increment(2).encode())
    old.close()
    tail = make().tail(PART, None)
    assert counted(tail) == [(1, 0), (1, 1), (2, 2), (2, 3)]
    tail.close()


def test_a_writer_resumes_only_if_no_other_writer_has_replaced_it(make: MakeTransport) -> None:
    first, second = make(), make()
    first.open(PART, opening).close()
    first.open(PART, opening, after_writer=7).close()
    write(second, range(0), writer=8)
    with pytest.raises(AbortedError, match="replaced"):
        first.open(PART, opening, after_writer=7)
    tail = make().tail(PART, None)
    assert counted(tail) == [(1, 0), (2, 1), (3, 2)]
    tail.close()


def test_of_writers_that_open_concurrently_one_remains_and_nothing_is_lost(make: MakeTransport) -> None:
    """Four threads open the part and append as long as they may; whatever `append` returned for is in the log."""
    acknowledged: list[tuple[int, int]] = []
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    def run(writer: int) -> None:
        try:
            transport = make()
            together.wait(30)
            claims: list[Claim] = []

            def made(claim: Claim) -> bytes:
                claims.append(claim)
                return opening(claim, writer=writer)

            appender = transport.open(PART, made)
            generation, number, _ = claims[-1]
            acknowledged.append((generation, number))
            with closing(appender):
                for following in range(number + 1, number + 6):
                    record = increment(following, generation=generation, writer=writer).encode()
                    appender.append(following, record)
                    acknowledged.append((generation, following))
        except (AbortedError, UnavailableError):  # replaced, or in doubt because another one just begins
            return
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    tail = make().tail(PART, None)
    found = counted(tail)
    tail.close()
    assert set(acknowledged) <= set(found)
    assert [number for _, number in found] == list(range(len(found)))


def test_trimming_keeps_the_requested_records_and_the_last(make: MakeTransport, request: pytest.FixtureRequest) -> None:
    transport = make()
    write(transport, range(20))
    first = transport.trim(PART, 15)
    assert first <= 15
    if "kafka" not in request.node.name:
        assert first > 5
    tail = transport.tail(PART, 15)
    assert counted(tail, begin=15) == [(1, number) for number in range(15, 21)]
    tail.close()
    assert transport.trim(PART, 1000) <= 20
    assert write(make(), range(0), writer=8) == 21


def test_documents_are_put_replaced_and_removed(make: MakeTransport) -> None:
    transport = make()
    assert transport.documents() == {}
    transport.put_document("a.json", b"1")
    transport.put_document("b.json", b"2")
    transport.put_document("a.json", b"3")
    assert make().documents() == {"a.json": b"3", "b.json": b"2"}
    transport.remove_document("a.json")
    transport.remove_document("a.json")
    assert make().documents() == {"b.json": b"2"}
