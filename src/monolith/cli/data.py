"""``monolith data``: shows, converts, counts and generates samples."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from monolith.cli._data import commands
from monolith.cli._data.writing import FORMATS
from monolith.cli._failures import INTERRUPTED
from monolith.data.records import Compression, Framing, SampleFormat
from monolith.errors import FailedPreconditionError, ResourceExhaustedError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_FRAMINGS = ", ".join(framing.name.lower() for framing in Framing)
_WRITTEN_FRAMINGS = ", ".join(framing.name.lower() for framing in Framing if framing.is_written)
_COMPRESSIONS = ", ".join(
    compression.name.lower() for compression in Compression if compression is not Compression.FROM_NAME
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith data`` and its commands."""
    parser.description = "Works on samples in files of every framing and compression, in Parquet and in Kafka topics."
    parser.epilog = "example: monolith data peek clicks.tfrecord.gz -n 3"
    inner = parser.add_subparsers(dest="data_command", metavar="command", required=True)
    _add_peek(inner)
    _add_convert(inner)
    _add_stats(inner)
    _add_generate(inner)


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand; returns 130 after Ctrl-C, which leaves no partial file."""
    command: Callable[[argparse.Namespace], int] = args.data_run
    try:
        return command(args)
    except KeyboardInterrupt:
        sys.stderr.write(f"\nmonolith data {args.data_command}: stopped; no half file is left\n")
        return INTERRUPTED
    except MemoryError as error:
        raise ResourceExhaustedError(f"not enough memory: {error}; give smaller numbers") from error
    except ImportError as error:  # of an optional package of a file system or format; names what to install
        raise FailedPreconditionError(str(error)) from error


def _add_peek(inner: argparse._SubParsersAction[Any]) -> None:
    parser = inner.add_parser(
        "peek",
        help="print the first samples readably",
        description="Prints samples: labels, line id and features, ids as slot/signature.",
        epilog="example: monolith data peek 'logs/*.snappy' -n 2, or kafka://localhost:9092/clicks instead of files",
    )
    _add_input(parser)
    parser.add_argument("-n", "--number", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    parser.set_defaults(data_run=commands.peek)


def _add_convert(inner: argparse._SubParsersAction[Any]) -> None:
    parser = inner.add_parser(
        "convert",
        help="write samples in another format, framing or compression",
        description="Reads any input and writes one file of any format; the way from one to another is by Example."
        " What a format has no place for is refused by name, unless --drop-unfit skips it.",
        epilog="example: monolith data convert 'old/*.snappy' --framing sort_id --out clicks.parquet",
    )
    _add_input(parser)
    _add_output(parser)
    parser.set_defaults(data_run=commands.convert)


def _add_stats(inner: argparse._SubParsersAction[Any]) -> None:
    parser = inner.add_parser(
        "stats",
        help="count ids per feature, different ids, labels, and estimate a table",
        description="Counts what samples hold, and estimates the memory of a table with a row for each id.",
        epilog="example: monolith data stats clicks.tfrecord --dim 32 --optimizer adam --json",
    )
    _add_input(parser)
    parser.add_argument("--dim", type=int, default=16, help="weights of a row (default: 16)")
    parser.add_argument("--optimizer", default="adagrad", help="row optimizer, for its state (default: adagrad)")
    parser.add_argument(
        "--exact-limit",
        type=int,
        default=5_000_000,
        metavar="N",
        help="different ids of a feature that are counted exactly; more are estimated, within a percent or two"
        " (default: 5000000)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines, and show no progress")
    parser.set_defaults(data_run=commands.stats)


def _add_generate(inner: argparse._SubParsersAction[Any]) -> None:
    parser = inner.add_parser(
        "generate",
        help="write generated clicks that drift",
        description="Writes clicks of a made-up world: users and items met by a power law, tastes that drift, and a"
        " planted model that can be learnt. The features user, item, tags and context have the slots 1 to 4.",
        epilog="example: monolith data generate --examples 100000 --out clicks.tfrecord.gz",
    )
    _add_output(parser)
    parser.add_argument("--examples", type=int, default=100_000, metavar="N", help="how many (default: 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default: 0)")
    parser.add_argument("--users", type=int, default=10_000, metavar="N", help="returning users (default: 10000)")
    parser.add_argument("--items", type=int, default=4_000, metavar="N", help="items on offer (default: 4000)")
    parser.add_argument(
        "--examples-per-day", type=int, default=25_000, metavar="N", help="how fast time passes (default: 25000)"
    )
    parser.set_defaults(data_run=commands.generate)


def _add_input(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of an input."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="INPUT",
        help="files, globs, URLs that fsspec supports, or kafka://host:port/topic; CSV and JSON lines are recognized by"
        " extension (.csv, .tsv, .jsonl, .ndjson, also compressed), Parquet by its first bytes",
    )
    parser.add_argument("--framing", metavar="NAME", help=f"of the input: {_FRAMINGS} (default: found out)")
    parser.add_argument(
        "--sample",
        metavar="NAME",
        help=f"what the records hold: {', '.join(sample.name.lower() for sample in SampleFormat)} (default: found out)",
    )
    parser.add_argument(
        "--compression", default="from_name", metavar="NAME", help=f"of the input: {_COMPRESSIONS} (default: found out)"
    )
    parser.add_argument(
        "--max-bad", type=int, default=0, metavar="N", help="skip up to N bad records and count them (default: 0)"
    )
    parser.add_argument(
        "--ids",
        default="",
        metavar="A,B",
        help="columns of Parquet and features of tf.train.Example whose integers are ids, if not marked in the file",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of an output."""
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write; it appears once complete")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        help="format (default: by the name of the file: parquet for *.parquet, example for *.tfrecord)",
    )
    parser.add_argument(
        "--out-framing",
        default="tfrecord",
        metavar="NAME",
        help=f"{_WRITTEN_FRAMINGS} (default: tfrecord, the one with checksums)",
    )
    parser.add_argument(
        "--out-compression",
        default="from_name",
        metavar="NAME",
        help=f"{_COMPRESSIONS} (default: by the name of the file: .gz, .zst, .snappy, .zlib)",
    )
    parser.add_argument(
        "--batch-size", type=int, default=256, metavar="N", help="rows of an example_batch (default: 256)"
    )
    parser.add_argument(
        "--look-ahead",
        type=int,
        default=10_000,
        metavar="N",
        help="samples that decide about the columns of a Parquet file (default: 10000)",
    )
    parser.add_argument(
        "--drop-unfit",
        action="store_true",
        help="skip features that the format has no place for, such as doubles in an instance (default: refuse)",
    )
    parser.add_argument("--force", action="store_true", help="write over a file that exists")
