"""Measures a complete online tree: from what a user does to the rows of both followers or servers, in real time.

    python benchmarks/online_tree.py                # 2,000 events a second for ten seconds, over files
    python benchmarks/online_tree.py --kafka        # over Kafka's mock
    python benchmarks/online_tree.py --serve        # to the answers of two servers, which clients ask all the time
    python benchmarks/online_tree.py --quick        # does it run?
    python benchmarks/online_tree.py --json

A producer, two joiners, a trainer that publishes every 0.1 s, and two followers run as processes on the cores that this
one may use (`taskset -c 0,1` for two). An event counts from its action, one without an action from the close of
its window, until both followers have its row, or until both servers have answered with it. Wall time: a machine that
does other things shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The tree of processes is part of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from system.crash.online_live import LiveScenario, run_live_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from system.crash.online_live import LiveTree

_LIMIT_SECONDS = 1.0
_AIM_SECONDS = 0.5
_CHUNKS = 20
_FIRST_CHUNK, _LAST_CHUNK = 5, 15
"""What is measured of twenty: processes are still starting before it, and windows wait for the end after it."""
_WATCHED = 8
"""Servers are queried for every eighth event: the queries of the measurement use the same cores."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when the limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events_per_second", type=float, default=2000.0, help="impressions and actions together")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long, about")
    parser.add_argument("--kafka", action="store_true", help="over Kafka's mock instead of files")
    parser.add_argument("--serve", action="store_true", help="two servers of an export instead of followers")
    parser.add_argument("--directory", help="where files are (default: the temporary folder)")
    parser.add_argument("--quick", action="store_true", help="a second of few events: does it run?")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(arguments)
    rate, seconds = (200.0, 2.0) if args.quick else (args.events_per_second, args.seconds)
    scenario = LiveScenario(
        events_per_second=rate,
        num_chunks=_CHUNKS,
        chunk_events=round(rate * seconds / 1.5 / _CHUNKS),
        kafka=args.kafka,
        serve=args.serve,
        watched=_WATCHED if args.serve and not args.quick else 1,
    )
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        found = _figures(run_live_tree(scenario, Path(folder)))
    readers = "servers" if args.serve else "followers"
    found |= {"events_per_second": rate, "cores": len(os.sched_getaffinity(0)), "readers": readers}
    sys.stdout.write((json.dumps(found) if args.json else _table(found)) + "\n")
    return 0 if args.quick or found["clicked"]["p99"] < _LIMIT_SECONDS else 1


def _figures(tree: LiveTree) -> dict[str, Any]:
    measured = {
        name: tree.delays(clicked=clicked, chunks=range(_FIRST_CHUNK, _LAST_CHUNK))
        for name, clicked in (("clicked", True), ("not_clicked", False))
    }
    found: dict[str, Any] = {
        name: {
            "p50": each[len(each) // 2],
            "p99": each[len(each) * 99 // 100],
            "longest": each[-1],
            "events": len(each),
        }
        for name, each in measured.items()
    }
    told = {role: each["staleness"] for role, each in tree.found.items() if "staleness" in each}
    return found | {"staleness": told}


def _table(found: dict[str, Any]) -> str:
    limits = f"p99 must be below {_LIMIT_SECONDS:g} s, aim {_AIM_SECONDS:g} s"
    lines = [
        f"{found['events_per_second']:g} events/s on {found['cores']} cores; {limits}",
        "| From | to | p50 | p99 | longest | events |",
        "|---|---|---|---|---|---|",
    ]
    for name, begin in (("clicked", "the action"), ("not_clicked", "the close of the window")):
        of = found[name]
        lines.append(
            f"| {begin} | both {found['readers']} | {of['p50']:.3f} s | {of['p99']:.3f} s | {of['longest']:.3f} s |"
            f" {of['events']:,} |"
        )
    for role, (p50, p99, *_) in found["staleness"].items():
        lines.append(f"| the oldest event of an increment | {role} | {p50:.3f} s | {p99:.3f} s | - | - |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
