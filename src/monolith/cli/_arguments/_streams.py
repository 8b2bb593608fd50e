"""Arguments of ``monolith train`` for a stream of examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

STREAM_ONLY = ("stream_partitions", "stream_max_lag", "stream_missing", "stream_stop_at_end", "stream_kafka")
"""Arguments that mean nothing without ``--stream``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the source of live examples."""
    group = parser.add_argument_group("training on a stream")
    group.add_argument(
        "--stream",
        metavar="PLACE",
        help="train on the output of monolith joiner while it comes, each example once: kafka://HOST:PORT/TOPIC or a"
        " path with {partition} in it",
    )
    group.add_argument(
        "--stream_partitions", type=int, metavar="N", help="how many there are (default: what the topic has)"
    )
    group.add_argument(
        "--stream_max_lag", type=float, metavar="S", help="skip and count older examples (default: skip none)"
    )
    group.add_argument(
        "--stream_missing", choices=("raise", "count"), help="what to do about missing numbers (default: raise)"
    )
    group.add_argument("--stream_stop_at_end", action="store_true", default=None, help="stop at the current end")
    group.add_argument(
        "--stream_kafka", action="append", metavar="KEY=VALUE", help="a setting of librdkafka; repeatable"
    )
