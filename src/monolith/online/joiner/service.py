"""A joiner process: claims free partitions, and joins each in a thread of its own."""

from __future__ import annotations

import logging
import threading
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.clock import LOOK_SECONDS, SystemClock
from monolith.config import Config, config, require_at_least
from monolith.data.records import BadRecords, Framing
from monolith.errors import InvalidArgumentError
from monolith.files import FileLock, LocalStorage
from monolith.observe import MetricClient
from monolith.online.joiner.endpoints import kafka_place
from monolith.online.joiner.examples import ExampleWriter
from monolith.online.joiner.files import FileInput, FileOutput, RolledInput, is_pattern
from monolith.online.joiner.machine import JoinCounts
from monolith.online.joiner.partition import JoinPartition
from monolith.online.joiner.rules import JoinRuleConfig
from monolith.online.joiner.state import PartitionState
from monolith.online.joiner.topics import TopicInput, TopicOutput, num_partitions
from monolith.stop_request import StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.clock import Clock
    from monolith.online.joiner.endpoints import JoinInput, JoinOutput

_LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.02
"""Pause when files have nothing new; reads of topics block by themselves."""
_SECONDS_BETWEEN_METRICS = 1.0


class Joiner:
    """A joiner process, which runs until it is stopped, the inputs end, or a partition fails.

    >>> from monolith.online.joiner import Joiner, JoinerConfig
    >>> Joiner(JoinerConfig(impressions="i-{partition}", actions="a-{partition}", output="o-{partition}",
    ...                     state_dir="state", partitions=2)).partitions
    []
    """

    def __init__(self, config: JoinerConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = SystemClock() if clock is None else clock
        self._bad = BadRecords(config.max_bad_records)
        self._writer = ExampleWriter(config.rules, config.sample)
        self._stopped = StopRequest()
        self._lock = threading.Lock()
        self._threads: dict[int, threading.Thread] = {}
        self._counts: dict[int, JoinCounts] = {}
        self._ended: set[int] = set()
        self._failure: BaseException | None = None

    @property
    def partitions(self) -> list[int]:
        """Numbers of the partitions that this process owns."""
        with self._lock:
            return sorted(self._threads)

    @property
    def counts(self) -> JoinCounts:
        """Counts of the events of these partitions, since their state was created."""
        with self._lock:
            return sum(self._counts.values(), JoinCounts())

    def stop(self) -> None:
        """Makes `run` return after the current step; may be called by a signal handler."""
        self._stopped.set()

    def run(self, tell: Callable[[Joiner], object] = lambda _: None) -> None:
        """Joins; `tell` is called when partitions are claimed, and several times a second.

        Raises:
            OpError: the failure of a partition; the state is that of the last step.
        """
        total = self._num_partitions()
        share = -(-total // self.config.num_joiners)
        try:
            while not self._stopped.is_set():
                self._take_partitions(total, share)
                tell(self)
                if self.config.stop_at_end and len(self._ended) == min(share, total):
                    break
                self._stopped.wait(LOOK_SECONDS)
        finally:
            self._stopped.set()
            for thread in self._threads.values():
                thread.join()
        tell(self)
        if self._failure is not None:
            raise self._failure

    def _num_partitions(self) -> int:
        config = self.config
        counts = {}
        for name in ("impressions", "actions", "output"):
            place = kafka_place(getattr(config, name))
            if place is not None:
                counts[name] = num_partitions(place, config.kafka)
        total = counts.get("impressions", 1) if config.partitions is None else config.partitions
        for name, count in counts.items():
            if count < total or (count > total and name != "output"):
                raise InvalidArgumentError(
                    f"joiner: {name} '{getattr(config, name)}' has {count} partitions, expected {total}: events of one"
                    " request must lie in partitions of one number"
                )
        return total

    def _take_partitions(self, total: int, share: int) -> None:
        """Claims free partitions up to this process's share."""
        for number in range(total):
            if len(self._threads) >= share:
                return
            if number in self._threads:
                continue
            folder = LocalStorage(Path(self.config.state_dir))
            folder.make()
            lock = folder.lock(f"partition-{number:05d}.lock")
            if lock is not None:
                lock.require_held()
                _LOG.info("partition %d of %d is joined here now", number, total)
                thread = threading.Thread(
                    target=self._join, args=(number, lock, total, share), name=f"joiner-{number}", daemon=True
                )
                with self._lock:
                    self._threads[number] = thread
                thread.start()

    def _join(self, number: int, lock: FileLock, total: int, share: int) -> None:
        try:
            partition = self._partition(number, total, share)
            try:
                partition.open()
                self._follow(number, partition)
            finally:
                partition.close()
        except BaseException as error:  # noqa: BLE001 - it is raised by `run`
            self._failure = self._failure or error
            self._stopped.set()
        finally:
            lock.release()

    def _follow(self, number: int, partition: JoinPartition) -> None:
        emitted = 0.0
        while not self._stopped.is_set():
            came = partition.step()
            self._note(number, partition)
            if self._clock.monotonic() - emitted >= _SECONDS_BETWEEN_METRICS:
                emitted = self._clock.monotonic()
                _emit(number, partition)
            if not came and self.config.stop_at_end and partition.is_at_end():
                partition.drain()
                self._note(number, partition)
                self._ended.add(number)
                break
            if not came:
                self._stopped.wait(_PAUSE_SECONDS)
        _emit(number, partition)

    def _note(self, number: int, partition: JoinPartition) -> None:
        counts = JoinCounts.from_dict(partition.counts.to_dict())
        with self._lock:
            self._counts[number] = counts

    def _partition(self, number: int, total: int, share: int) -> JoinPartition:
        config = self.config
        identity: dict[str, Any] = {"mode": config.rules.mode, "partitions": total}
        for name in ("impressions", "actions", "output"):
            place = kafka_place(getattr(config, name))
            identity[name] = getattr(config, name) if place is None else place.topic
        state = PartitionState(
            str(Path(config.state_dir) / f"partition-{number:05d}.sqlite"),
            identity=identity,
            memory_bytes=config.memory_bytes // share,
            max_bytes=config.max_state_bytes,
        )
        return JoinPartition(
            self._writer,
            inputs={name: self._input(getattr(config, name), number) for name in ("impressions", "actions")},
            output=self._output(config.output, number),
            state=state,
            bad=self._bad,
            clock=self._clock,
        )

    def _input(self, place: str, number: int) -> JoinInput:
        topic = kafka_place(place)
        if topic is None:
            path, framing = self.config.path(place, number), Framing.of(self.config.framing)
            return (RolledInput if is_pattern(path) else FileInput)(path, framing, self._bad)
        return TopicInput(topic, number, self.config.kafka)

    def _output(self, place: str, number: int) -> JoinOutput:
        topic = kafka_place(place)
        if topic is None:
            return FileOutput(self.config.path(place, number))
        return TopicOutput(topic, number, self.config.kafka)


def _emit(number: int, partition: JoinPartition) -> None:
    client, tags = MetricClient("monolith.joiner"), {"partition": number}
    for name, value in partition.counts.to_dict().items():
        client.emit_store(name, value, tags)
    client.emit_store("waiting_keys", partition.num_waiting, tags)
    client.emit_store("lag_seconds", partition.lag_ms / 1000, tags)


_PARTITION = "{partition}"


@config
class JoinerConfig(Config):
    """Sources of events, destination of examples, and how events are joined.

    A place is ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``, or a path with ``{partition}`` in it. The path of an input may
    have a ``*`` in its last component, for rotated files such as those of a request log. Events of one request must be
    in partitions of the same number: write both topics with the request as key.
    """

    impressions: str
    actions: str
    output: str
    state_dir: str
    """Folder for the state of every partition, on a file system that all joiner processes share, or of one machine."""
    rules: JoinRuleConfig = field(default_factory=JoinRuleConfig)
    partitions: int | None = None
    """Number of partitions; None: that of the impressions topic."""
    num_joiners: int = 1
    """Number of processes that share the partitions; each claims at most an equal share of the free ones. A process
    that finds none waits until one is free."""
    sample: str = "example"
    """Message type of the samples of impressions: ``"example"`` or ``"instance"``."""
    framing: str = "plain"
    """Framing of the records in input files."""
    memory_bytes: int = 1 << 30
    """Memory for undecided entries, over all partitions of this process; entries beyond it are kept on disk only."""
    max_state_bytes: int | None = None
    """Maximum size of the state of one partition on disk; None: unlimited."""
    max_bad_records: int = 0
    """Number of unreadable records that may be skipped during the lifetime of a process."""
    stop_at_end: bool = False
    """Whether to close all windows and exit when all inputs have been read."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Further settings of librdkafka, such as ``security.protocol``."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "num_joiners")
        require_at_least(self, 0, "max_bad_records")
        require_at_least(self, 1 << 16, "memory_bytes")
        Framing.of(self.framing)
        topics = []
        for name in ("impressions", "actions", "output"):
            place = getattr(self, name)
            topic = kafka_place(place)
            topics.append(topic)
            if topic is None and _PARTITION not in place and self.partitions != 1:
                raise ValueError(
                    f"JoinerConfig: {name} must be kafka://HOST:PORT/TOPIC or a path with {_PARTITION} in it, got"
                    f" '{place}'; or give partitions=1"
                )
        _require_patterns(self)
        if len({self.impressions, self.actions, self.output}) < 3:
            raise ValueError("JoinerConfig: impressions, actions and output must be three different places")
        if self.kafka and not any(topics):
            raise ValueError("JoinerConfig: kafka has settings, but no place is a topic")
        if self.partitions is not None:
            require_at_least(self, 1, "partitions")
        elif topics[0] is None:
            raise ValueError("JoinerConfig: partitions must be given unless impressions is a Kafka topic")

    def path(self, place: str, number: int) -> str:
        """Returns the file of a partition."""
        return place.replace(_PARTITION, f"{number:05d}")


def _require_patterns(config: JoinerConfig) -> None:
    if "*" in config.output:
        raise ValueError(f"JoinerConfig: output must be one place, got the pattern '{config.output}'")
    for name in ("impressions", "actions"):
        place: str = getattr(config, name)
        if "*" in place.rpartition("/")[0]:
            raise ValueError(f"JoinerConfig: {name} may have a '*' in its last part only, got '{place}'")
