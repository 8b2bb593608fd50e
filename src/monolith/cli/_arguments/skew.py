"""The arguments of ``monolith skew``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

MEANT = {
    "--checkpoint": "the checkpoint is that of the step at which the version was exported; give --model_dir",
    "--threshold": "the share of differing scores from which on it fails is --fail_above",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith skew``."""
    parser.allow_abbrev = False
    parser.description = (
        "Replays the requests that monolith serve --request_log has logged, and counts scores that differ:"
        " against the code and the checkpoint that the served version was exported from, or without --task against the"
        " export itself. Requests answered with rows of a delta log are counted apart: no file has those rows."
    )
    parser.epilog = (
        "example: monolith skew requests/ --export models/a/export --task my_task:Ranker --model_dir models/a"
    )
    parser.add_argument(
        "log", metavar="REQUEST_LOG", help="its folder, a file, a pattern of files, or kafka://HOST:PORT/TOPIC"
    )
    parser.add_argument("--export", required=True, metavar="PATH", help="the export that was served, or its versions")
    parser.add_argument("--task", metavar="TASK", help="module:Class of the task, or a registered name")
    parser.add_argument("--model_dir", metavar="DIR", help="where the checkpoints of the task are")
    parser.add_argument("--params_override", metavar="JSON", help="parameters of the task by name")
    parser.add_argument("--tolerance", type=float, default=1e-3, metavar="D", help="of scores (default: 0.001)")
    parser.add_argument(
        "--fail_above",
        type=float,
        metavar="SHARE",
        help="exit with 1 when a larger share of scores differs, or none could be compared (default: never)",
    )
    parser.add_argument("--show", type=int, default=10, metavar="N", help="of the largest differences (default: 10)")
    parser.add_argument("--examples", type=int, metavar="N", help="stop after N (default: at the end of the log)")
    parser.add_argument("--max_bad_records", type=int, default=0, metavar="N", help="that may be skipped (default: 0)")
    parser.add_argument(
        "--kafka", action="append", default=[], metavar="KEY=VALUE", help="further settings of librdkafka"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON and show no progress")
