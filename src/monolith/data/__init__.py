"""Input of training data: messages, framings of files and streams, parsing to batches, prefetch.

Read `records` (framings, reader and writer), then `columns` and `parser` (from records to a `Batch`), `dataset`,
`sources` and `pipeline` (from files to batches), `operators` for transforms of batches, and `prefetch` for batches made
ahead of their use.
`clicks` generates synthetic traffic. The messages are in `monolith.data.protos`. May import: `tensors`, `dependence`,
`config`, `ids`, `errors`, the core and torch.
"""

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.data.batch import Batch
from monolith.data.clicks import ClickStream, SyntheticClicks
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
from monolith.data.records.bad_records import BadRecords, InRange
from monolith.data.records.compression import Compression
from monolith.data.records.framing import Framing, SampleFormat, source_key
from monolith.data.records.reader import RecordPosition, RecordReader, read_examples, split_records
from monolith.data.records.records import Records
from monolith.data.records.writer import RecordWriter, write_examples
from monolith.data.sources.arrow_columns import ColumnType
from monolith.data.sources.arrow_dataset import ArrowDataset, from_arrow, from_huggingface, from_pandas, from_polars
from monolith.data.sources.csv_dataset import CsvDataset
from monolith.data.sources.file_patterns import expand_ranges, partition_patterns
from monolith.data.sources.file_set import FileSet
from monolith.data.sources.in_memory import GeneratedDataset, InMemoryDataset
from monolith.data.sources.json_lines_dataset import JsonLinesDataset, JsonParser
from monolith.data.sources.parquet_dataset import ParquetDataset
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
