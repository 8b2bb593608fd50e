"""Inputs of ``monolith data``: files of any framing, Parquet, topics; their content is detected if not given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from monolith import _core
from monolith.cli._data.table_files import ParquetTables, TableFiles, line_tables
from monolith.data import (
    FeaturePruning,
    example_of_instance,
    example_of_lists,
    examples_of_batch,
    with_source_key,
    with_typed_fields,
)
from monolith.data.kafka import KafkaConfig, KafkaDataset
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.tf_example_pb2 import Example as TfExample
from monolith.data.records import (
    BadRecords,
    Compression,
    Framing,
    SampleFormat,
    framings_of,
    looks_like,
    open_decompressed,
)
from monolith.data.sources import FileSet, RecordDataset
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator, Sequence

    import numpy.typing as npt
    from google.protobuf.message import Message

    from monolith.data import Dataset
    from monolith.data.records import Records

_MESSAGES: dict[SampleFormat, type[Message]] = {
    SampleFormat.EXAMPLE: Example,
    SampleFormat.EXAMPLE_BATCH: ExampleBatch,
    SampleFormat.INSTANCE: Instance,
    SampleFormat.TF_EXAMPLE: TfExample,
}


def fits(payload: bytes, sample: SampleFormat) -> bool:
    """Returns whether these bytes are a message of only this format: no unknown field, no feature without a name."""
    if sample is SampleFormat.PLAINTEXT:
        return True
    try:
        message = _MESSAGES[sample].FromString(payload)
    except DecodeError:
        return False
    return bool(payload) and not len(UnknownFieldSet(message)) and _has_names(message, sample)


def _has_names(message: Any, sample: SampleFormat) -> bool:
    if sample is SampleFormat.EXAMPLE:
        return all(feature.name and feature.feature.WhichOneof("type") for feature in message.named_feature)
    if sample is SampleFormat.EXAMPLE_BATCH:
        return bool(message.batch_size > 0) and all(feature.name for feature in message.named_feature_list)
    if sample is SampleFormat.TF_EXAMPLE:
        return bool(message.features.feature) and all(
            name and feature.WhichOneof("kind") for name, feature in message.features.feature.items()
        )
    return all(feature.name for feature in message.feature)


def examples_of(payload: bytes, sample: SampleFormat, *, ids: Collection[str] = ()) -> Iterator[Example]:
    """Yields the samples of a record, reserved features in typed fields; `ids` are integers that are v2 ids."""
    try:
        message: Any = _MESSAGES[sample].FromString(payload)
        if sample is SampleFormat.EXAMPLE:
            yield with_typed_fields(message)
        elif sample is SampleFormat.EXAMPLE_BATCH:
            yield from examples_of_batch(message, FeaturePruning.AS_IS)
        elif sample is SampleFormat.INSTANCE:
            yield example_of_instance(message)
        else:
            yield example_of_lists(message, ids=ids)
    except DecodeError as error:
        raise DataLossError(f"not a message of format {sample.name}: {error}") from error


KAFKA = "kafka://"
_HEAD_BYTES = 1 << 19
_KINDS = (SampleFormat.EXAMPLE, SampleFormat.EXAMPLE_BATCH, SampleFormat.INSTANCE, SampleFormat.TF_EXAMPLE)
_MOST_LOOKED_AT = 8
_TFRECORD_HEAD = 12
_TRUNCATED = 1
"""What the core calls a record that is cut off."""


@dataclass(frozen=True, slots=True)
class Input:
    """What is read: records of a format, or files of columns."""

    name: str
    sample: SampleFormat | None
    """What the records hold; None: there are columns instead."""
    framing: Framing | None = None
    """None: columns, or messages that are the records."""
    records: Dataset[Records] | None = None
    tables: TableFiles | None = None

    def blocks(self) -> Iterator[Records]:
        """Yields the records; not of files of columns."""
        if self.records is None:
            raise InvalidArgumentError(f"{self.name}: it holds columns, not records")
        with self.records.read() as reading:
            yield from reading

    def messages(self, block: Records) -> Iterator[bytes]:
        """Yields the records of a block; the data source of a lagrangex header goes into the message."""
        if not block.has_source_keys or self.sample is None:
            yield from block
            return
        for record, key in zip(block, block.source_keys().tolist(), strict=True):
            yield with_source_key(record, self.sample, key)


def open_input(args: argparse.Namespace) -> Input:
    """Returns the input that the arguments name: `paths`, `framing`, `sample`, `compression`, `max_bad`."""
    bad = BadRecords(args.max_bad)
    sample = None if args.sample is None else SampleFormat.of(args.sample)
    if any(path.startswith(KAFKA) for path in args.paths):
        return _open_topic(args, sample, bad)
    files = FileSet(args.paths)
    name = files.files[0] if len(files.files) == 1 else f"{len(files.files)} files, the first is {files.files[0]}"
    if args.framing is None and sample is None:
        tables = line_tables(files, Compression.of(args.compression), bad)
        if tables is not None:
            return Input(name, None, tables=tables)
    head, compression = _head_of(files, Compression.of(args.compression))
    if head[:4].tobytes() == b"PAR1":
        return Input(name, None, tables=ParquetTables(files, bad))
    framing = None if args.framing is None else Framing.of(args.framing)
    framing, sample = _detect_format(head, framing, sample, f"file '{files.files[0]}'")
    dataset = RecordDataset(files, framing, compression=compression, sample=sample, bad=bad)
    return Input(name, sample, framing, records=dataset)


def _head_of(files: FileSet, compression: Compression) -> tuple[npt.NDArray[np.uint8], Compression]:
    """Returns the first bytes of the first file, uncompressed, and how the files are compressed."""
    path = files.files[0]
    with files.open(path) as file:
        if not file.seekable():
            raise InvalidArgumentError(f"file '{path}': a pipe can be read once only; write it to a file first")
        if compression is Compression.FROM_NAME and compression.resolve(path) is Compression.NONE:
            # Detected by the first bytes, as a name may lack an extension.
            compression = looks_like(file.read(4)) or Compression.NONE
            file.seek(0)
        compression = compression.resolve(path)
        stream = open_decompressed(file, compression)
        head = bytearray()
        try:
            while len(head) < _HEAD_BYTES and (piece := stream.read(_HEAD_BYTES - len(head))):
                head += piece
        except DataLossError as error:
            raise DataLossError(f"file '{path}': {error}") from error
    return np.frombuffer(bytes(head), np.uint8), compression


def _detect_format(
    head: npt.NDArray[np.uint8], framing: Framing | None, sample: SampleFormat | None, name: str
) -> tuple[Framing, SampleFormat]:
    """Returns framing and format: those that were given, the others detected from the head."""
    if framing is not None and (sample is not None or not len(head)):
        return framing, sample or SampleFormat.EXAMPLE
    if (fitting := _fitting(head, framing, sample)) is not None:
        return fitting
    if not len(head):
        raise InvalidArgumentError(f"{name}: it is empty; give its --framing and --sample")
    said = " of ".join([*([] if sample is None else [sample.name]), *([] if framing is None else [framing.name])])
    if said and (other := _fitting(head, None, None)) is not None:
        raise InvalidArgumentError(f"{name}: not {said}: its start fits {other[1].name} records of {other[0].name}")
    if reason := _cut_off(head):
        raise DataLossError(f"{name}: offset 0: {reason}")
    raise InvalidArgumentError(
        f"{name}: its start fits no {'framing' if framing is None else framing.name} of "
        f"{'any format' if sample is None else sample.name}; give --framing, --sample or --compression, or name it"
        " .csv, .tsv or .jsonl if it is that"
    )


def _fitting(
    head: npt.NDArray[np.uint8], framing: Framing | None, sample: SampleFormat | None
) -> tuple[Framing, SampleFormat] | None:
    for kind in _KINDS if sample is None else (sample,):
        candidates = framings_of(head, kind, at_end=False) if framing is None else [framing]
        for candidate in candidates:
            payloads = _payloads(head, candidate)
            if payloads and all(fits(payload, kind) for payload in payloads):
                return candidate, kind
    return None


def _cut_off(head: npt.NDArray[np.uint8]) -> str:
    """Returns why the first record is cut off, if the file is a TFRECORD file, which its checksum shows; else empty."""
    if not _TFRECORD_HEAD <= len(head) < _HEAD_BYTES:
        return ""
    _, _, _, problem, reason, _ = _core.scan_frames(
        head, 0, framing=Framing.TFRECORD.value, at_end=True, max_record_bytes=1 << 31, max_records=1
    )
    return str(reason) if problem == _TRUNCATED else ""


def _payloads(head: npt.NDArray[np.uint8], framing: Framing) -> list[bytes]:
    spans, *_ = _core.scan_frames(
        head, 0, framing=framing.value, at_end=False, max_record_bytes=1 << 31, max_records=_MOST_LOOKED_AT
    )
    return [head[begin : begin + length].tobytes() for begin, length in spans.reshape(-1, 2).tolist()]


def _open_topic(args: argparse.Namespace, sample: SampleFormat | None, bad: BadRecords) -> Input:
    brokers, _, topics = args.paths[0].removeprefix(KAFKA).partition("/")
    if len(args.paths) > 1 or not brokers or not topics:
        raise InvalidArgumentError(f"expected one kafka://host:port/topic, got {' '.join(args.paths)}")
    names = topics.split(",")
    framing = None if args.framing in {None, "none"} else Framing.of(args.framing)
    if sample is None or args.framing is None:
        framing, sample = _message_format(names, brokers, framing, sample)
    config = KafkaConfig(
        group="monolith-data", framing=None if framing is None else framing.name, sample=sample.name, order="fixed"
    )
    dataset = KafkaDataset(names, brokers, stop="end", config=config, bad=bad)
    return Input(args.paths[0], sample, framing, records=dataset)


def _message_format(
    topics: Sequence[str], brokers: str, framing: Framing | None, sample: SampleFormat | None
) -> tuple[Framing | None, SampleFormat]:
    config = KafkaConfig(group="monolith-data", sample="plaintext", order="fixed", block_messages=1)
    with KafkaDataset(topics, brokers, stop="end", config=config).read() as reading:
        block = next(reading, None)
    if block is None:
        raise NotFoundError(f"{KAFKA}{brokers}/{','.join(topics)}: there are no messages")
    value = block[0]
    for kind in _KINDS if sample is None else (sample,):
        if framing is None and fits(value, kind):
            return None, kind
    if framing is None and sample is None and _is_json(value):
        return None, SampleFormat.PLAINTEXT
    return _detect_format(np.frombuffer(value, np.uint8), framing, sample, block.place_of(0))


def _is_json(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except ValueError:
        return False
