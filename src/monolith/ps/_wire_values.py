"""Conversion between values of the store's interface and messages."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from monolith.errors import DataLossError
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import BatchStamp, ChangePosition, SnapshotWriteConfig, StoreStats, bucket_bounds, made_from
from monolith.tables.formats import RowBlock
from monolith.tables.snapshot import FileEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def buckets_message(buckets: range) -> messages.Buckets:
    """Encodes a range of buckets."""
    return messages.Buckets(begin=buckets.start, end=buckets.stop)


def buckets_in(message: messages.Buckets) -> range:
    """Decodes a range of buckets.

    Raises:
        InvalidArgumentError: the range is invalid.
    """
    buckets = range(message.begin, message.end)
    bucket_bounds(buckets)
    return buckets


def mark_message(mark: ChangePosition) -> messages.Mark:
    """Encodes a mark."""
    return messages.Mark(generation=mark.generation, life=mark.life, epoch=mark.epoch)


def mark_in(message: messages.Mark) -> ChangePosition:
    """Decodes a mark."""
    return ChangePosition(message.generation, message.life, message.epoch)


def stamp_message(stamp: BatchStamp) -> messages.Stamp:
    """Encodes the stamp of a batch."""
    return messages.Stamp(**asdict(stamp))


def stamp_in(message: messages.Stamp) -> BatchStamp:
    """Decodes the stamp of a batch.

    Raises:
        InvalidArgumentError: its numbers are invalid.
    """
    return made_from(BatchStamp, message)


def write_message(store: str, number: int, folder: str, rules: SnapshotWriteConfig) -> messages.WriteCutRequest:
    """Encodes the request to write a cut."""
    return messages.WriteCutRequest(store=store, number=number, folder=folder, **asdict(rules))


def rules_in(message: messages.WriteCutRequest) -> SnapshotWriteConfig:
    """Decodes the rules for writing a cut."""
    return SnapshotWriteConfig(
        snapshot_id=message.snapshot_id,
        state=message.state,
        drop_expired=message.drop_expired,
        num_files=message.num_files if message.HasField("num_files") else None,
        rate_bytes_per_second=message.rate_bytes_per_second if message.HasField("rate_bytes_per_second") else None,
        threads=message.threads if message.HasField("threads") else None,
    )


def file_message(entry: FileEntry) -> messages.File:
    """Encodes the entry of a written file."""
    return messages.File(**asdict(entry))


def file_in(message: messages.File) -> FileEntry:
    """Decodes the entry of a written file."""
    return made_from(FileEntry, message)


def stats_message(
    stats: StoreStats, *, epoch: int, life: messages.Life, newest_times: Iterable[int]
) -> messages.SituationResponse:
    """Encodes the statistics of one server's rows."""
    return messages.SituationResponse(
        epoch=epoch,
        life=life,
        newest_times=newest_times,
        rows=stats.rows,
        memory_bytes=stats.memory_bytes,
        applied=stats.applied,
        tables={name: messages.TableNumbers(numbers=numbers) for name, numbers in stats.tables.items()},
    )


def stats_in(message: messages.SituationResponse) -> StoreStats:
    """Decodes the statistics of one server's rows, which have no plans and no times ahead of the clock."""
    return StoreStats(
        rows=message.rows,
        memory_bytes=message.memory_bytes,
        applied=dict(message.applied),
        open_plans=0,
        tables={name: dict(table.numbers) for name, table in message.tables.items()},
        times_ahead=0,
    )


_MESSAGE_BYTES = 1 << 20
_MOST_BYTES = 1 << 32
"""Maximum size of one block: 4,096 rows of the widest kind are far below it."""


def messages_of(blocks: Iterable[RowBlock]) -> Iterator[messages.Blocks]:
    """Yields messages with the blocks."""
    parts: list[bytes] = []
    size = 0
    for block in blocks:
        rest = memoryview(block.data)
        while rest:
            room = _MESSAGE_BYTES - size
            part, rest = rest[:room], rest[room:]
            parts.append(bytes(part))
            size += len(part)
            if size == _MESSAGE_BYTES:
                yield messages.Blocks(parts=parts, is_continued=len(rest) > 0)
                parts, size = [], 0
    if parts:
        yield messages.Blocks(parts=parts)


def blocks_in(stream: Iterable[messages.Blocks]) -> Iterator[RowBlock]:
    """Yields the blocks of messages.

    Raises:
        DataLossError: the bytes are not blocks, or end within one.
    """
    begun: list[bytes] = []
    size = 0
    for message in stream:
        whole = len(message.parts) - message.is_continued
        for number, part in enumerate(message.parts):
            begun.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise DataLossError(f"row blocks: one of at most {_MOST_BYTES} bytes expected, got {size} and more")
            if number < whole:
                yield RowBlock(b"".join(begun))
                begun, size = [], 0
    if begun:
        raise DataLossError(f"row blocks: the stream ended within a block, after {size} bytes of it")
