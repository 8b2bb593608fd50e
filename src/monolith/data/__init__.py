"""Input of training data: messages, framings of files and streams, parsing to batches, prefetch.

Read `framing` (layout of records in a file), then `record_reader` and `record_writer`, then `columns` and `parser`
(from records to a `Batch`), `operators` for transforms of batches, and `prefetch` for batches made ahead of their use.
`clicks` generates synthetic traffic. The messages are in `monolith.data.protos`. May import: `tensors`, `dependence`,
`config`, `ids`, `errors`, the core and torch.
"""

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.data.batch import Batch
from monolith.data.click_world import SyntheticClicks
from monolith.data.clicks import ClickStream
from monolith.data.columns import (
    INVALID_LABEL,
    DenseColumn,
    FirstBytes,
    Floats,
    Ids,
    Ints,
    Label,
    LineIdField,
    NestedIds,
    Weight,
)
from monolith.data.dataset import Dataset, Reading
from monolith.data.ffm import generate_ffm_example, slot_to_key
from monolith.data.file_queue.queue import FileQueue, LocalFileQueue, QueuedFiles
from monolith.data.file_queue.shared import SharedFileQueue
from monolith.data.in_range import InRange
from monolith.data.json_parser import JsonParser
from monolith.data.kafka import KafkaConfig, KafkaDataset
from monolith.data.merge import MergedDataset
from monolith.data.parser import Parser
from monolith.data.prefetch import (
    FIFOQueue,
    MultiFIFOQueue,
    MultiQueueRunner,
    PaddingFIFOQueue,
    enqueue_dicts_with_queue_return,
)
from monolith.data.records.bad_records import BadRecords
from monolith.data.records.compression import Compression
from monolith.data.records.framing import Framing, source_key
from monolith.data.records.reader import RecordPosition, RecordReader, read_examples, split_records
from monolith.data.records.records import Records
from monolith.data.records.sample_format import SampleFormat
from monolith.data.records.writer import RecordWriter, write_examples
from monolith.data.sources.arrow_columns import ColumnType
from monolith.data.sources.arrow_dataset import ArrowDataset, from_arrow, from_huggingface, from_pandas, from_polars
from monolith.data.sources.csv_dataset import CsvDataset
from monolith.data.sources.file_set import FileSet
from monolith.data.sources.generated import GeneratedDataset
from monolith.data.sources.in_memory import InMemoryDataset
from monolith.data.sources.json_lines_dataset import JsonLinesDataset
from monolith.data.sources.parquet_dataset import ParquetDataset
from monolith.data.sources.partitions import expand_ranges, partition_patterns
from monolith.data.sources.record_dataset import RecordDataset
from monolith.data.text_ids import TextColumn, text_ids

__all__ = [
    "ArrowDataset",
    "BadRecords",
    "Batch",
    "ClickStream",
    "ColumnType",
    "Compression",
    "CsvDataset",
    "Dataset",
    "DenseColumn",
    "FIFOQueue",
    "FileQueue",
    "FileSet",
    "FirstBytes",
    "Floats",
    "Framing",
    "GeneratedDataset",
    "INVALID_LABEL",
    "Ids",
    "InMemoryDataset",
    "InRange",
    "Ints",
    "JsonLinesDataset",
    "JsonParser",
    "KafkaConfig",
    "KafkaDataset",
    "Label",
    "LineIdField",
    "LocalFileQueue",
    "MergedDataset",
    "MultiFIFOQueue",
    "MultiQueueRunner",
    "NestedIds",
    "PaddingFIFOQueue",
    "ParquetDataset",
    "Parser",
    "QueuedFiles",
    "Reading",
    "RecordDataset",
    "RecordPosition",
    "RecordReader",
    "RecordWriter",
    "Records",
    "SampleFormat",
    "SharedFileQueue",
    "SyntheticClicks",
    "TextColumn",
    "Weight",
    "enqueue_dicts_with_queue_return",
    "expand_ranges",
    "from_arrow",
    "from_huggingface",
    "from_pandas",
    "from_polars",
    "generate_ffm_example",
    "partition_patterns",
    "read_examples",
    "slot_to_key",
    "source_key",
    "split_records",
    "text_ids",
    "write_examples",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"ClickWorld": "SyntheticClicks", "Dense": "DenseColumn"})
