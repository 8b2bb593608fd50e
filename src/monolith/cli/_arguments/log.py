"""The arguments of ``monolith log``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

MEANT = {"--follow": "it is an action: monolith log follow PLACE", "--tail": "write --last N", "-n": "write --last N"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith log``."""
    parser.description = (
        "Inspects delta logs, which a training run writes and followers read to keep tables up to date."
        " No training code is needed. A place is a folder, kafka://HOST:PORT/TOPIC, or any URL that fsspec supports."
    )
    parser.epilog = "example: monolith log verify models/a/delta_log"
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, (text, example) in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=f"{text}.", epilog=f"example: {example}")
        action.add_argument("place", metavar="PLACE", help="a folder, kafka://HOST:PORT/TOPIC, or a URL")
        if name in {"show", "verify", "follow"}:
            action.add_argument("--part", metavar="NAME", help="one part of the log (default: all)")
        if name in {"show", "follow"}:
            action.add_argument("--last", type=int, metavar="N", help="start N increments before the end")
        if name == "follow":
            action.add_argument("--until_caught_up", action="store_true", help="end when everything was read")
        if name == "compact":
            action.add_argument("--keep_bases", type=int, default=1, metavar="N", help="bases that stay (default: 1)")
            action.add_argument(
                "--base_folder", metavar="PLACE", help="where the base goes (default: into the log; a topic needs it)"
            )
        action.add_argument(
            "--kafka", action="append", default=[], metavar="KEY=VALUE", help="a setting of librdkafka; repeatable"
        )
        action.add_argument("--json", action="store_true", help="print JSON instead of lines")


_ACTIONS = {
    "list": ("show the parts and the bases of a log", "monolith log list models/a/delta_log --json"),
    "show": ("show the increments of a log", "monolith log show models/a/delta_log --part dense --last 5"),
    "verify": (
        "read every record and every base, and name what is missing, corrupt, foreign, doubled or out of order",
        "monolith log verify models/a/delta_log",
    ),
    "follow": ("print increments as they come, until interrupted", "monolith log follow models/a/delta_log --last 0"),
    "compact": (
        "save the state of the log as a base while its writer runs, and remove what no follower needs then",
        "monolith log compact models/a/delta_log --keep_bases 2",
    ),
}
