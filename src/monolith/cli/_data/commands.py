"""What each command of ``monolith data`` does."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from monolith.cli._data import describing
from monolith.cli._data.opening import examples_of, open_input
from monolith.cli._data.statistics import Statistics, table_bytes_per_id
from monolith.cli._data.table_files import LineTables, examples_in
from monolith.cli._data.writing import ParquetSink, check_output, finish_output, open_sink
from monolith.data import LABEL_FEATURE, WEIGHT_FEATURE, ClickStream, SyntheticClicks
from monolith.data.protos.example_pb2 import Example
from monolith.data.records import BadRecords, RecordWriter, SampleFormat
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.ids import SIGNATURE_BITS_V2
from monolith.observe import Progress
from monolith.tensors import Ragged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from monolith.cli._data.opening import Input
    from monolith.data import Batch

T = TypeVar("T")

_SLOTS = {"user": 1, "item": 2, "tags": 3, "context": 4}
"""Of generated clicks: their ids do not carry one."""


def peek(args: argparse.Namespace) -> int:
    """Print the first samples."""
    if args.number < 0:
        raise InvalidArgumentError(f"-n must be >= 0, got {args.number}")
    number_shown = min(args.number, sys.maxsize)
    source = open_input(args)
    if source.sample is SampleFormat.PLAINTEXT:
        for place, record in islice(_records(source), number_shown):
            sys.stdout.write(describing.bytes_line(place, record, as_json=args.json) + "\n")
        return 0
    if source.tables is not None and not args.json:
        shown_schema = describing.schema_lines(source.name, source.tables.schema)
        sys.stdout.write("\n".join(shown_schema) + "\n" + ("\n" if number_shown else ""))
    for number, (place, example) in enumerate(islice(_examples(source, args), number_shown)):
        if args.json:
            sys.stdout.write(json.dumps({"place": place, **describing.plain(example)}) + "\n")
        else:
            shown = describing.lines(place, example, is_row=source.tables is not None)
            sys.stdout.write(("\n" if number else "") + "\n".join(shown) + "\n")
    return 0


def convert(args: argparse.Namespace) -> int:
    """Write the samples in another format, framing or compression."""
    finish_output(args)
    check_output(args)
    source = open_input(args)
    is_same = source.sample is not None and source.sample.name.lower() == args.to
    with _shown(Progress(unit="samples" if not is_same else "records")) as bar:
        if source.sample is SampleFormat.PLAINTEXT or is_same:
            _copy_records(source, args, bar)
        elif isinstance(source.tables, LineTables) and args.to == "parquet":
            _copy_tables(source.tables, args, bar)
        else:
            with open_sink(args) as sink:
                for place, example in _examples(source, args):
                    sink.write(example, place)
                    bar.update()
        done = bar.done
        bar.update(0, written=args.out)
    if not done:
        sys.stderr.write(f"monolith data: {source.name} holds no samples; {args.out} is empty\n")
    return 0


def stats(args: argparse.Namespace) -> int:
    """Count what the samples hold."""
    if args.exact_limit < 0:
        raise InvalidArgumentError(f"--exact-limit must be >= 0, got {args.exact_limit}")
    table_bytes_per_id(args.dim, args.optimizer)  # refuse a wrong name before an hour of reading
    source = open_input(args)
    counted = Statistics(exact_limit=args.exact_limit, ids=_ids_of(args))
    if source.sample is SampleFormat.PLAINTEXT:
        raise InvalidArgumentError("plaintext has no features to count; give --sample")
    with _shown(None if args.json else Progress(unit="samples")) as bar:
        for rows in _counts(source, counted, args):
            if bar is not None:
                bar.update(rows)
    report = counted.report(dim=args.dim, optimizer=args.optimizer)
    sys.stdout.write((json.dumps(report, indent=2) if args.json else "\n".join(describing.report_lines(report))) + "\n")
    return 0


def generate(args: argparse.Namespace) -> int:
    """Write generated clicks."""
    finish_output(args)
    if args.examples < 1:
        raise InvalidArgumentError(f"--examples must be >= 1, got {args.examples}")
    world = SyntheticClicks(num_users=args.users, num_items=args.items, examples_per_day=args.examples_per_day)
    stream = ClickStream(args.examples, seed=args.seed, world=world)
    with open_sink(args) as sink, _shown(Progress(total=args.examples, unit="samples")) as bar:
        for batch in stream:
            for example in _clicks(batch):
                sink.write(example)
            bar.update(batch.num_rows)
    return 0


@contextmanager
def _shown(bar: T) -> Iterator[T]:
    """Closes the bar at the end; on failure only the error is shown."""
    try:
        yield bar
    except BaseException:
        if isinstance(bar, Progress) and sys.stderr.isatty():
            sys.stderr.write("\n")
        raise
    if isinstance(bar, Progress):
        bar.close()


def _records(source: Input) -> Iterator[tuple[str, bytes]]:
    for block in source.blocks():
        for index, record in enumerate(source.messages(block)):
            yield block.place_of(index), record


def _examples(source: Input, args: argparse.Namespace) -> Iterator[tuple[str, Example]]:
    """Yields every sample with its place; skips bad ones within the limit."""
    ids = _ids_of(args)
    if source.tables is not None:
        yield from examples_in(source.tables, ids=ids)
        return
    bad = BadRecords(args.max_bad)
    sample = source.sample or SampleFormat.EXAMPLE
    for place, record in _records(source):
        try:
            examples = list(examples_of(record, sample, ids=ids))
        except DataLossError as error:
            bad.add(f"{place}: {error}")
            continue
        except ValueError as error:
            raise InvalidArgumentError(f"{place}: {error}") from error
        for example in examples:
            yield place, example


def _ids_of(args: argparse.Namespace) -> frozenset[str]:
    return frozenset(args.ids.split(",")) - {""}


def _copy_records(source: Input, args: argparse.Namespace, bar: Progress) -> None:
    """The records as they are: only what is around them changes."""
    if args.to == "parquet":
        raise InvalidArgumentError("plaintext cannot become Parquet; give the --sample of the input")
    with RecordWriter(args.out, args.out_framing, compression=args.out_compression) as writer:
        for block in source.blocks():
            for record in source.messages(block):
                writer.write(record)
            bar.update(len(block))


def _copy_tables(tables: LineTables, args: argparse.Namespace, bar: Progress) -> None:
    """The columns as they are, with the types that were found."""
    with open_sink(args) as sink:
        for _, table in tables.tables():
            if isinstance(sink, ParquetSink):
                sink.write_table(table)
            bar.update(table.num_rows)


def _counts(source: Input, counted: Statistics, args: argparse.Namespace) -> Iterator[int]:
    if source.sample is not None:
        yield from counted.add_records(source.blocks(), source.sample, BadRecords(args.max_bad))
        return
    if source.tables is None:
        return
    fixed = {LABEL_FEATURE, WEIGHT_FEATURE, "label", "req_time"}
    for batch in source.tables.batches:
        kinds = {
            name: _kind_of(batch, name)
            for name in batch
            if name not in fixed and not (name.startswith("__") and name.endswith("__"))
        }
        counted.add_batch(batch, kinds)
        yield batch.num_rows


def _kind_of(batch: Batch, name: str) -> str:
    """Returns the kind of a column; columns have no type for ids, so integers and strings count as ids."""
    values = batch[name]
    if isinstance(values, list):
        return "bytes"
    flat = values.flat_values if isinstance(values, Ragged) else values
    return "reals" if flat.dtype.is_floating_point else "ids"


def _clicks(batch: Batch) -> Iterator[Example]:
    columns = {name: batch[name] for name in _SLOTS}
    rows = {
        name: values.to_lists() if isinstance(values, Ragged) else [[value] for value in values.tolist()]  # type: ignore[union-attr]
        for name, values in columns.items()
    }
    labels, times = batch["label"].reshape(-1).tolist(), batch["req_time"].tolist()  # type: ignore[union-attr]
    for row in range(batch.num_rows):
        example = Example(label=[labels[row]])
        example.line_id.req_time = times[row]
        for name, slot in _SLOTS.items():
            ids = example.named_feature.add(name=name, id=slot).feature.fid_v2_list.value
            ids.extend([(slot << SIGNATURE_BITS_V2) | number for number in rows[name][row]])
        yield example
