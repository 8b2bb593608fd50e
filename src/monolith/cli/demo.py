"""``monolith demo``: generated traffic that drifts, a model that learns from it online, and two that cannot keep up."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Self

from monolith.cli._demo import report
from monolith.cli._demo.race import Race, RaceConfig
from monolith.cli._demo.view import View
from monolith.cli._failures import INTERRUPTED
from monolith.cli._option_values import require_writable

if TYPE_CHECKING:
    import argparse
    from types import FrameType

    from monolith.cli._demo.race import RaceProgress


def run(args: argparse.Namespace) -> int:
    """Race, show, write the report; 0, or 130 after Ctrl-C. A run that was stopped early is compared with nothing."""
    require_writable(args.out)
    race = Race(RaceConfig(examples=args.examples, seconds=args.seconds), seed=args.seed)
    view = None if args.json else View(sys.stderr)
    with _CtrlC() as ctrl_c:

        def after_batch(progress: RaceProgress) -> bool:
            if view is not None:
                view.show(progress)
            return not ctrl_c.was_pressed

        try:
            progress = race.run(after_batch)
        finally:
            if view is not None:
                view.close(race.progress)
    report.write_report(args.out, progress)
    where = args.out.resolve()
    if args.json:
        sys.stdout.write(json.dumps(report.summary_of(progress) | {"report": str(where)}) + "\n")
    else:
        sys.stdout.write(f"{report.conclusion_of(progress)}\nReport with plots: {where.as_uri()}\n")
    return INTERRUPTED if ctrl_c.was_pressed else 0


class _CtrlC:
    """Handles the first Ctrl-C as a request to stop gracefully; the second one ends immediately, as usual."""

    def __init__(self) -> None:
        self.was_pressed = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, _signal: int, _frame: FrameType | None) -> None:
        self.was_pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
