"""``monolith joiner``: joins what was shown with what users did into examples, each exactly once."""

from __future__ import annotations

import gc
import json
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from monolith.cli._option_values import key_values, without_none
from monolith.observe import MetricsEndpoint, Progress
from monolith.online.joiner import Joiner, JoinerConfig, JoinRuleConfig

if TYPE_CHECKING:
    import argparse

_RULES = (
    *("window_seconds", "mode", "late_actions", "late_seconds", "disorder_seconds", "idle_seconds"),
    *("max_ahead_seconds", "negative_rate", "seed", "negative_action", "negative_label"),
)
_PROCESS = (
    *("impressions", "actions", "output", "state_dir", "partitions", "num_joiners", "sample", "framing"),
    *("memory_bytes", "max_state_bytes", "max_bad_records"),
)
_ENDINGS = (signal.SIGTERM, signal.SIGINT)
COLLECTED_EVERY = (100_000, 20, 100)
"""Thresholds of the garbage collector. Waiting events are many objects without cycles: the default thresholds cost a
third of the time."""


def run(args: argparse.Namespace) -> int:
    """Joins until requested to stop."""
    joiner = Joiner(_config(args))
    with ExitStack() as stack:
        stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(*COLLECTED_EVERY)
        if args.metrics_port is not None:
            endpoint = stack.enter_context(MetricsEndpoint(args.metrics_port))
            sys.stderr.write(f"metrics on port {endpoint.port}\n")
        for number in _ENDINGS:
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: joiner.stop()))
        joiner.run(_Teller(stack.enter_context(Progress(unit="examples"))))
    counts = joiner.counts.to_dict()
    shown = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in counts.items() if value)
    sys.stdout.write((json.dumps(counts) if args.json else f"joined: {shown or 'nothing came'}") + "\n")
    return 0


class _Teller:
    """Prints which partitions are joined here, and their progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._partitions: list[int] | None = None

    def __call__(self, joiner: Joiner) -> None:
        partitions, counts = joiner.partitions, joiner.counts
        if partitions != self._partitions:
            self._partitions = partitions
            names = ", ".join(map(str, partitions))
            self._progress.write(f"joining partitions {names}" if names else "waiting: other processes have all")
        done = counts.positives + counts.negatives + counts.corrections
        self._progress.update(done - self._progress.done, late_actions=counts.late_actions, bad=counts.bad)


def _config(args: argparse.Namespace) -> JoinerConfig:
    rules = without_none({name: getattr(args, name) for name in _RULES})
    if args.label_actions:
        rules["tasks"] = tuple(_actions(text) for text in args.label_actions)
    return JoinerConfig(
        **without_none({name: getattr(args, name) for name in _PROCESS}),
        rules=JoinRuleConfig(**rules),
        stop_at_end=args.stop_at_end,
        kafka=key_values(args.kafka, "--kafka"),
    )


def _actions(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(action) for action in text.split(","))
    except ValueError:
        raise ValueError(f"--label_actions takes numbers of actions separated by commas, got '{text}'") from None
