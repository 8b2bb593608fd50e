"""How training data reaches a model: messages, framings of files and streams, parsing to batches, prefetch.

Read `framing` (how records lie in a file), then `record_reader` and `record_writer`, then `columns` and `parser` (from
records to a `Batch`), and `prefetch` for batches made ahead of their use. The messages are in `monolith.data.protos`.
May import: `tensors`, `dependence`, `config`, `ids`, `errors`, the core and torch.
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
from monolith.data.dataset import Dataset, Reading
from monolith.data.ffm import generate_ffm_example, slot_to_key
from monolith.data.framing import Framing, source_key
from monolith.data.kafka import KafkaConfig, KafkaDataset
from monolith.data.parser import Parser
from monolith.data.prefetch import (
    FIFOQueue,
    MultiFIFOQueue,
    MultiQueueRunner,
    PaddingFIFOQueue,
    enqueue_dicts_with_queue_return,
)
from monolith.data.record_reader import RecordPosition, RecordReader, read_examples, split_records
from monolith.data.record_writer import RecordWriter, write_examples
from monolith.data.records import Records
from monolith.data.sample_format import SampleFormat

__all__ = [
    "BadRecords",
    "Batch",
    "Compression",
    "Dataset",
    "Dense",
    "FIFOQueue",
    "FirstBytes",
    "Floats",
    "Framing",
    "INVALID_LABEL",
    "Ids",
    "Ints",
    "KafkaConfig",
    "KafkaDataset",
    "Label",
    "LineIdField",
    "MultiFIFOQueue",
    "MultiQueueRunner",
    "NestedIds",
    "PaddingFIFOQueue",
    "Parser",
    "Reading",
    "RecordPosition",
    "RecordReader",
    "RecordWriter",
    "Records",
    "SampleFormat",
    "Weight",
    "enqueue_dicts_with_queue_return",
    "generate_ffm_example",
    "read_examples",
    "slot_to_key",
    "source_key",
    "split_records",
    "write_examples",
]
