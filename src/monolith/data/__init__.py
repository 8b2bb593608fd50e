"""Samples on their way to a model: messages, framings of files and streams, and parsing to batches.

Read `framing` (how records lie in a file), then `record_reader` and `record_writer`, then `columns` and `parser` (from
records to a `Batch`). The messages themselves are in `monolith.data.protos`.
"""

from monolith.data.bad_records import BadRecords
from monolith.data.batch import Batch
from monolith.data.columns import (
    INVALID_LABEL,
    Dense,
    FirstBytes,
    Floats,
    Ids,
    Ints,
    Label,
    LineIdField,
    NestedIds,
    Weight,
)
from monolith.data.compression import Compression
from monolith.data.ffm import generate_ffm_example, slot_to_key
from monolith.data.framing import Framing, source_key
from monolith.data.parser import Parser
from monolith.data.record_reader import RecordPosition, RecordReader, read_examples, split_records
from monolith.data.record_writer import RecordWriter, write_examples
from monolith.data.records import Records
from monolith.data.sample_format import SampleFormat

__all__ = [
    "BadRecords",
    "Batch",
    "Compression",
    "Dense",
    "FirstBytes",
    "Floats",
    "Framing",
    "INVALID_LABEL",
    "Ids",
    "Ints",
    "Label",
    "LineIdField",
    "NestedIds",
    "Parser",
    "RecordPosition",
    "RecordReader",
    "RecordWriter",
    "Records",
    "SampleFormat",
    "Weight",
    "generate_ffm_example",
    "read_examples",
    "slot_to_key",
    "source_key",
    "split_records",
    "write_examples",
]
