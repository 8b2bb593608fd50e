"""Arguments that several commands of ``monolith data`` share."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from monolith.cli._data.writing import FORMATS
from monolith.data.records.compression import Compression
from monolith.data.records.framing import Framing
from monolith.data.records.sample_format import SampleFormat
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    import argparse

_FRAMINGS = ", ".join(each.name.lower() for each in Framing)
_WRITTEN_FRAMINGS = ", ".join(each.name.lower() for each in Framing if each.is_written)
_COMPRESSIONS = ", ".join(each.name.lower() for each in Compression if each is not Compression.FROM_NAME)


def add_input(parser: argparse.ArgumentParser) -> None:
    """What is read."""
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
        help=f"what the records hold: {', '.join(each.name.lower() for each in SampleFormat)} (default: found out)",
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


def add_output(parser: argparse.ArgumentParser) -> None:
    """What is written."""
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


_FORMAT_OF_ENDING = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tfrecord": "example",
    ".tfrecords": "example",
    ".records": "example",
    "": "example",
}


def finish_output(args: argparse.Namespace) -> None:
    """Chooses the format by the name of the file, if it was not given.

    Raises:
        InvalidArgumentError: the extension has no known format.
    """
    if args.to is not None:
        return
    path = PurePosixPath(args.out)
    if Compression.FROM_NAME.resolve(args.out) is not Compression.NONE:
        path = path.with_suffix("")
    # A dot in front of digits belongs to a name, as in part.0007.
    ending = "" if path.suffix[1:].isdigit() else path.suffix.lower()
    if ending not in _FORMAT_OF_ENDING:
        known = ", ".join(f"{each} ({name})" for each, name in _FORMAT_OF_ENDING.items() if each)
        raise InvalidArgumentError(
            f"file '{args.out}': no format to write has the extension '{ending}'; use one of {known}, or"
            f" give --to {{{','.join(FORMATS)}}}"
        )
    args.to = _FORMAT_OF_ENDING[ending]
