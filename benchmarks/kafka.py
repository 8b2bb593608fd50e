"""Measures what reading Kafka as a dataset costs: blocks of records with positions, against librdkafka's bare loop.

    python benchmarks/kafka.py
    python benchmarks/kafka.py --quick            # does everything run?

The brokers are librdkafka's mock cluster in a process of its own. It keeps about 5 MB of a partition, so a topic is
written once, under that, and read again and again. Both sides take turns in one process, in rounds; each reads the
complete topic and is timed from its assignment to its last message, with the same consume calls of 1,024 messages. The
bare loop counts messages and drops them; ours hands out records in one buffer and has the offset after each block.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from monolith.data import KafkaConfig, KafkaDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_RATIO = 0.6
NUM_PARTITIONS = 4
BLOCK = 1024
PARTITION_BYTES = 3_500_000
_SERVE = """
import sys
from confluent_kafka import Producer
producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
print(",".join(f"{b.host}:{b.port}" for b in producer.list_topics(timeout=10).brokers.values()), flush=True)
sys.stdin.read()
"""


class Workload(NamedTuple):
    """A topic, and how it is read."""

    name: str
    topic: str
    message: bytes
    config: KafkaConfig


def workloads() -> list[Workload]:
    """Small messages, large ones, and messages of many records."""
    records = b"".join((200).to_bytes(8, "little") + b"x" * 200 for _ in range(16))
    small = KafkaConfig(sample="plaintext", block_messages=BLOCK)
    fixed = KafkaConfig(sample="plaintext", block_messages=BLOCK, order="fixed")
    framed = KafkaConfig(sample="plaintext", block_messages=BLOCK, framing="plain")
    return [
        Workload("200 B messages, as they come", "small", b"x" * 200, small),
        Workload("200 B messages, fixed order", "small", b"x" * 200, fixed),
        Workload("1 kB messages, as they come", "large", b"x" * 1000, small),
        Workload("1 kB messages, fixed order", "large", b"x" * 1000, fixed),
        Workload("messages of 16 records of 200 B", "framed", records, framed),
    ]


def write(brokers: str, workload: Workload, partition_bytes: int) -> int:
    """Fills the topic and returns the number of its messages."""
    producer = Producer({"bootstrap.servers": brokers, "queue.buffering.max.messages": 1_000_000})
    count = partition_bytes // len(workload.message)
    for partition in range(NUM_PARTITIONS):
        for _ in range(count):
            producer.produce(workload.topic, workload.message, partition=partition)
        if producer.flush(60):
            raise RuntimeError("the mock cluster did not take the messages")
    producer.close()
    return count * NUM_PARTITIONS


def bare(brokers: str, workload: Workload, total: int) -> float:
    """Messages per second of consume calls and nothing else."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "bare",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": workload.config.buffer_bytes >> 11,
            "fetch.queue.backoff.ms": 50,
        }
    )
    consumer.assign([TopicPartition(workload.topic, number, 0) for number in range(NUM_PARTITIONS)])
    begin = time.perf_counter()
    seen = 0
    while seen < total:
        seen += len(consumer.consume(min(BLOCK, total - seen), 0.1))
    seconds = time.perf_counter() - begin
    consumer.close()
    return seen / seconds


def ours(brokers: str, workload: Workload, total: int) -> float:
    """Messages per second of the dataset."""
    dataset = KafkaDataset(workload.topic, brokers, stop="end", config=workload.config)
    per_message = 16 if workload.config.framing else 1
    with dataset.read() as reading:
        begin = time.perf_counter()
        seen = sum(map(len, reading))
        seconds = time.perf_counter() - begin
    if seen != total * per_message:
        raise RuntimeError(f"{workload.name}: read {seen} records of {total * per_message}")
    return seen / per_message / seconds


def measure(brokers: str, workload: Workload, total: int, rounds: int) -> tuple[float, float, float]:
    """Medians of both sides, and of the rounds' ratios."""
    pairs = [(ours(brokers, workload, total), bare(brokers, workload, total)) for _ in range(rounds)]
    return (
        statistics.median(one for one, _ in pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(one / other for one, other in pairs),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; with --check return 1 when a row stays below its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="little data and one round: does everything run?")
    parser.add_argument("--check", action="store_true", help="return 1 when a row stays below its limit")
    args = parser.parse_args(arguments)
    rounds, size = (1, 500_000) if args.quick else (args.rounds, PARTITION_BYTES)
    failed = False
    with subprocess.Popen([sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            brokers = server.stdout.readline().decode().strip() if server.stdout else ""
            print("| measure | ours | bare librdkafka loop | ratio | must reach | ok |\n|---|---|---|---|---|---|")
            totals: dict[str, int] = {}
            for workload in workloads():
                if workload.topic not in totals:
                    totals[workload.topic] = write(brokers, workload, size)
                mine, peer, ratio = measure(brokers, workload, totals[workload.topic], rounds)
                is_fine = ratio >= MIN_RATIO
                failed = failed or not is_fine
                print(
                    f"| {workload.name} | {mine / 1e3:.0f} k messages/s | {peer / 1e3:.0f} | {ratio:.2f} "
                    f"| >= {MIN_RATIO} | {'yes' if is_fine else 'NO'} |"
                )
        finally:
            server.kill()
    return 1 if args.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
