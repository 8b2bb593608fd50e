"""A run on a stream of examples, by the arguments of ``monolith train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.cli._arguments._streams import STREAM_ONLY
from monolith.cli._key_values import key_values
from monolith.online.stream import ExampleStream, StreamConfig, StreamHook
from monolith.train.compat.conversions import MODES

if TYPE_CHECKING:
    import argparse

    from monolith.cli._launching import Way
    from monolith.hook import Hook
    from monolith.observe.progress import Progress
    from monolith.train.compat.options import RunnerConfig

__all__ = ["stream_hooks", "stream_of", "stream_result"]


def stream_of(options: RunnerConfig, args: argparse.Namespace, way: Way) -> ExampleStream | None:
    """Returns the stream that the command names, or None.

    Raises:
        ValueError: arguments that do not fit; names them, and valid ones.
    """
    if args.stream is None:
        for name in STREAM_ONLY:
            if getattr(args, name) is not None:
                raise ValueError(f"--{name}: is of --stream PLACE; give that, too, or omit --{name}")
        return None
    _require_alone(options, way)
    if args.deterministic:
        raise ValueError("--deterministic: batches of a stream are cut as examples arrive; omit one of the two")
    given: dict[str, Any] = {
        "partitions": args.stream_partitions,
        "max_lag_seconds": args.stream_max_lag,
        "missing": args.stream_missing,
        "stop_at_end": args.stream_stop_at_end,
        "kafka": None if args.stream_kafka is None else key_values(args.stream_kafka, "--stream_kafka"),
    }
    return ExampleStream(args.stream, StreamConfig(**{key: each for key, each in given.items() if each is not None}))


def stream_hooks(stream: ExampleStream | None, args: argparse.Namespace, bar: Progress) -> list[Hook]:
    """Returns the hooks that monitor the stream."""
    return [] if stream is None else [StreamHook(stream, bar, task=args.task)]


def stream_result(stream: ExampleStream | None) -> dict[str, Any]:
    """Returns the counts of examples by outcome, for the result of a command."""
    return {} if stream is None else {"stream": stream.counts.to_dict()}


def _require_alone(options: RunnerConfig, way: Way) -> None:
    if way != "alone" or options.enable_sync_training:
        raise ValueError("--stream: one process trains on a stream; omit the options of a job")
    if MODES[options.mode] != "train":
        raise ValueError(f"--stream: is of --mode train, got --mode {options.mode}; omit it")
