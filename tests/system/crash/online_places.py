"""How the processes of an online tree communicate: files of one folder, or topics of Kafka's mock."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from monolith.data.kafka.client import confluent_kafka
from monolith.deltalog import DeltaLog
from system.crash.online_events import Sent
from system.crash.processes import Child, Tell

_LENGTH = struct.Struct("<Q")
_FLUSH_SECONDS = 60.0
_POLL_SECONDS = 0.01
_ERRORS_ONLY = 4
_QUICK = "fetch.wait.max.ms=20"
"""A real broker answers a fetch when data arrives; the mock only when the wait is over."""
_TOPICS = ("impressions", "actions", "examples")


class Sender(Protocol):
    """Writes events; used by one process."""

    def send(self, records: Sequence[Sent]) -> None:
        """Writes records; returns when they are durable."""
        ...


class Places(Protocol):
    """The arguments by which every process finds its neighbours."""

    def joiner(self) -> list[str]:
        """Returns arguments of ``monolith joiner``."""
        ...

    def trainer(self) -> list[str]:
        """Returns arguments of ``monolith train``."""
        ...

    def open_sender(self) -> Sender:
        """Opens a sender for the producer."""
        ...

    def log(self) -> str:
        """Returns the log, as in ``monolith serve --follow``."""
        ...

    def open_log(self) -> DeltaLog:
        """Opens the log for a follower."""
        ...


class FilePlaces:
    """Files for events, examples and the log."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self._folder = folder
        self._partitions = partitions

    def joiner(self) -> list[str]:
        """Returns paths with a placeholder for the partition."""
        places = {"impressions": "impressions", "actions": "actions", "output": "examples"}
        given = [f"--{name}={self._folder / file}-{{partition}}" for name, file in places.items()]
        return [*given, f"--partitions={self._partitions}"]

    def trainer(self) -> list[str]:
        """Returns the files of the joiners, and the folder of the log."""
        stream = [f"--stream={self._folder / 'examples'}-{{partition}}", f"--stream_partitions={self._partitions}"]
        return [*stream, f"--delta_log={self.log()}"]

    def open_sender(self) -> Sender:
        """Opens a sender that appends after the last complete record of each file."""
        return _FileSender(self._folder)

    def log(self) -> str:
        """Returns the folder of the log."""
        return str(self._folder / "log")

    def open_log(self) -> DeltaLog:
        """Opens the log in its folder."""
        return DeltaLog(self.log())


class _FileSender:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}

    def send(self, records: Sequence[Sent]) -> None:
        together: dict[str, bytes] = {}
        for each in records:
            name = f"{each.kind}-{each.partition:05d}"
            together[name] = together.get(name, b"") + _LENGTH.pack(len(each.record)) + each.record
        for name, data in together.items():
            if name not in self._files:
                self._files[name] = self._open(name)
            os.write(self._files[name], data)

    def _open(self, name: str) -> int:
        """Truncates half a record of a killed producer, which no reader has read."""
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        end = 0
        while len(data) - end >= _LENGTH.size and end + _LENGTH.size + _LENGTH.unpack_from(data, end)[0] <= len(data):
            end += _LENGTH.size + _LENGTH.unpack_from(data, end)[0]
        os.ftruncate(descriptor, end)
        return descriptor


class TopicPlaces:
    """Topics for events, examples and the log; bases of the log are in a folder."""

    def __init__(self, folder: Path, brokers: str) -> None:
        self._base_folder = folder / "bases"
        self._brokers = brokers

    def joiner(self) -> list[str]:
        """Returns topics; the number of partitions is in their metadata."""
        inputs = [f"--{name}={self._place(name)}" for name in _TOPICS[:2]]
        return [*inputs, f"--output={self._place('examples')}", f"--kafka={_QUICK}"]

    def trainer(self) -> list[str]:
        """Returns topics of the examples and the log."""
        log = [f"--delta_log={self.log()}", f"--delta_log_base_dir={self._base_folder}"]
        return [f"--stream={self._place('examples')}", f"--stream_kafka={_QUICK}", *log]

    def open_sender(self) -> Sender:
        """Opens a sender that waits for the broker."""
        return _TopicSender(self._brokers)

    def log(self) -> str:
        """Returns the topic of the log."""
        return self._place("log")

    def open_log(self) -> DeltaLog:
        """Opens the log in its topic."""
        return DeltaLog(self.log(), base_folder=str(self._base_folder))

    def _place(self, topic: str) -> str:
        return f"kafka://{self._brokers}/{topic}"


class _TopicSender:
    def __init__(self, brokers: str) -> None:
        self._producer: Any = confluent_kafka().Producer({"bootstrap.servers": brokers, "linger.ms": 0})

    def send(self, records: Sequence[Sent]) -> None:
        for each in records:
            self._producer.produce(each.kind, each.record, each.request, each.partition)
        if self._producer.flush(_FLUSH_SECONDS):
            raise TimeoutError(f"the broker did not take {len(records)} events within {_FLUSH_SECONDS:g} s")


@contextmanager
def open_places(folder: Path, partitions: int, *, kafka: bool) -> Iterator[Places]:
    """Yields files of a folder, or topics of a mock cluster, which ends with the block."""
    if not kafka:
        yield FilePlaces(folder, partitions)
        return
    broker = Broker()
    try:
        broker.wait()
        yield TopicPlaces(folder, broker.brokers)
    finally:
        broker.close()


class Broker:
    """librdkafka's mock cluster in a process of its own; it creates topics of four partitions."""

    partitions = 4

    def __init__(self) -> None:
        self._child = Child(_serve)
        self.brokers = ""

    def wait(self) -> None:
        """Waits until the cluster is ready."""
        while not (told := self._child.told()) and not self._child.has_ended():
            time.sleep(_POLL_SECONDS)
        self.brokers = told["brokers"]

    def close(self) -> None:
        """Ends the cluster."""
        self._child.close()


def _serve(tell: Tell) -> dict[str, Any]:
    """Serves in the child, until it is killed."""
    producer = confluent_kafka().Producer({"test.mock.num.brokers": 1, "linger.ms": 0, "log_level": _ERRORS_ONLY})
    found = producer.list_topics(timeout=_FLUSH_SECONDS).brokers.values()
    for topic in _TOPICS:
        producer.produce(topic, None, partition=0)  # a topic is created with its first message; this one is no record
    if producer.flush(_FLUSH_SECONDS):
        raise TimeoutError(f"the mock cluster did not begin within {_FLUSH_SECONDS:g} s")
    tell({"brokers": ",".join(f"{each.host}:{each.port}" for each in found)})
    while True:
        producer.poll(1.0)
