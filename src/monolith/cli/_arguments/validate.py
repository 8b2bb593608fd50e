"""The arguments of ``monolith validate``."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

MEANT = {
    "--interval": "how often a copy loads the trained state is --take_over, for any number of copies",
    "--model_dir": "nothing is saved: the task is trained from scratch, in the order of time",
}
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith validate``."""
    parser.allow_abbrev = False
    parser.description = (
        "Trains a task on what it reads, in the order of time, and has every example predicted before it is"
        " learned from: by copies of the model, each of which loads the trained state at an interval of its own. A time"
        " is event time, of the column req_time: 90, 90s, 30min, 5h or 2d."
    )
    parser.epilog = "example: monolith validate my_task:Ranker --take_over 1min 1h never --warm_up 5d --out report.html"
    parser.add_argument("task", metavar="TASK", help="module:Class of a monolith.Task, or a registered name")
    parser.add_argument(
        "--take_over",
        nargs="+",
        type=interval,
        default=[60.0],
        metavar="TIME",
        help="one copy for each: how often it loads the state; 0: before every batch, never: once, after the warm-up"
        " (default: 1min)",
    )
    parser.add_argument("--dense", type=interval, metavar="TIME", help="the same of dense weights (default: with rows)")
    parser.add_argument("--warm_up", type=seconds, default=0.0, metavar="TIME", help="learned from, and not measured")
    parser.add_argument(
        "--window", type=seconds, default=86_400.0, metavar="TIME", help="measured together (default: 1d)"
    )
    parser.add_argument(
        "--evict",
        type=seconds,
        metavar="TIME",
        help="expired rows leave within it (default: 1h a day of expire_days); 0: they stay",
    )
    parser.add_argument("--disorder", type=seconds, default=3600.0, metavar="TIME", help="of batches (default: 1h)")
    parser.add_argument("--examples", type=int, metavar="N", help="stop after N (default: at the end of the input)")
    parser.add_argument("--head", metavar="NAME", help="what is measured, where a task predicts several things")
    parser.add_argument("--seed", type=int, default=0, help="of torch, before the model is made (default: 0)")
    parser.add_argument("--params_override", metavar="JSON", help="parameters of the task by name")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a page with plots")
    parser.add_argument("--json", action="store_true", help="print all windows as JSON and show no progress")


def seconds(text: str) -> float:
    """Returns a time as it is written on the command line."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 30min, 5h or 2d, got {text!r}")
    return float(match[1]) * _UNITS[match[2] or "s"]


def interval(text: str) -> float:
    """Parses an interval in seconds, or "never"."""
    return math.inf if text == "never" else seconds(text)


def written(time: float) -> str:
    """Returns a time as one would write it.

    >>> [written(time) for time in (90.0, 1800.0, 18_000.0, 172_800.0, 0.0, math.inf)]
    ['90s', '30min', '5h', '2d', 'every batch', 'never']
    """
    if math.isinf(time):
        return "never"
    if time == 0:
        return "every batch"
    unit = max((name for name in _UNITS if time % _UNITS[name] == 0), key=_UNITS.__getitem__, default="s")
    return f"{time / _UNITS[unit]:g}{unit}"
