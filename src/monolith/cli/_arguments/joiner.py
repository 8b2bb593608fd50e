"""The arguments of ``monolith joiner``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

MEANT = {
    "--brokers": "a topic is written kafka://HOST:PORT/TOPIC",
    "--window": "its length is --window_seconds",
    "--workers": "the number of processes that share the partitions is --num_joiners",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith joiner``."""
    parser.allow_abbrev = False
    parser.description = (
        "Joins impressions and actions by request and item into examples, each exactly once. A place is"
        " kafka://HOST:PORT[,HOST:PORT]/TOPIC or a path with {partition} in it. It ends on SIGTERM or SIGINT, and"
        " resumes where it left off when restarted. Options default to the values of JoinRuleConfig and JoinerConfig."
    )
    parser.epilog = (
        "example: monolith joiner --impressions kafka://10.0.0.7:9092/shown --actions"
        " kafka://10.0.0.7:9092/done --output kafka://10.0.0.7:9092/examples --state_dir /data/joiner"
    )
    for name, text in (
        ("impressions", "what was shown"),
        ("actions", "what users did"),
        ("output", "where examples go"),
    ):
        parser.add_argument(f"--{name}", required=True, metavar="PLACE", help=text)
    parser.add_argument("--state_dir", required=True, metavar="DIR", help="what is undecided; the same for all joiners")
    parser.add_argument("--json", action="store_true", help="print counts at the end as JSON instead of a line")
    _add_rules(parser.add_argument_group("how events are joined"))
    _add_process(parser.add_argument_group("the process"))


def _add_rules(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--window_seconds", type=float, metavar="S", help="how long an action may follow (default: 600)")
    group.add_argument("--mode", choices=("wait", "fast_emit"), help="when negatives go out (default: wait)")
    group.add_argument(
        "--late_actions", choices=("drop", "count", "correct"), help="whose example is out (default: count)"
    )
    group.add_argument("--late_seconds", type=float, metavar="S", help="how long they are known (default: a window)")
    group.add_argument("--disorder_seconds", type=float, metavar="S", help="of events of one input (default: 5)")
    group.add_argument("--idle_seconds", type=float, metavar="S", help="silence that ends waiting (default: 10)")
    group.add_argument("--max_ahead_seconds", type=float, metavar="S", help="skip events further ahead (default: 3600)")
    group.add_argument("--negative_rate", type=float, metavar="R", help="share of negatives kept (default: 1)")
    group.add_argument("--seed", type=int, metavar="N", help="of that draw (default: 0)")
    group.add_argument("--negative_action", type=int, metavar="A", help="action that stands for none")
    group.add_argument("--negative_label", type=float, metavar="L", help="label of a negative (default: 0)")
    group.add_argument(
        "--label_actions",
        action="append",
        default=[],
        metavar="A,A",
        help="actions that make a label positive; once for each label (default: one label, every action)",
    )


def _add_process(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--partitions", type=int, metavar="N", help="how many there are (default: what the topic has)")
    group.add_argument("--num_joiners", type=int, metavar="N", help="processes that share them (default: 1)")
    group.add_argument("--sample", choices=("example", "instance"), help="of impressions (default: example)")
    group.add_argument("--framing", metavar="NAME", help="of input files (default: plain)")
    group.add_argument("--memory_bytes", type=int, metavar="B", help="for what is undecided (default: 1 GiB)")
    group.add_argument("--max_state_bytes", type=int, metavar="B", help="on disk, of one partition (default: no limit)")
    group.add_argument("--max_bad_records", type=int, metavar="N", help="that may be skipped (default: 0)")
    group.add_argument("--stop_at_end", action="store_true", help="end with the inputs, and close all windows")
    group.add_argument(
        "--kafka", action="append", default=[], metavar="KEY=VALUE", help="a setting of librdkafka; repeatable"
    )
    group.add_argument("--metrics_port", type=int, metavar="P", help="serve Prometheus metrics here; 0: a free port")
