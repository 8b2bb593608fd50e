"""The arguments of ``monolith tpu``: a flag for each field of `monolith.tpu.TpuConfig`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

MODES = ("train", "eval", "train_and_eval")
_TEXTS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag, with its default as `TpuConfig` has it."""

    name: str
    kind: type
    default: Any
    help: str


FLAGS = (
    Flag("model_dir", str, None, "folder or URL of checkpoints and summaries"),
    Flag("save_checkpoints_steps", int, None, "steps between checkpoints; the task's own number goes first"),
    Flag("iterations_per_loop", int, 10000, "steps between two looks of the host, which logs and saves"),
    Flag("host_call_every_n_steps", int, 500, "steps between two summaries; 0: none"),
    Flag("pipeline_execution", bool, False, "read the rows of the next batch during this one: they are one step old"),
    Flag("enable_stopping_signals", bool, False, "end by a signal in the batches after the data, and save"),
    Flag("overwrite_end_date", str, "", "instead of the task's train.end_date"),
    Flag("partition_strategy", str, "mod", "how rows are spread: mod, by their ids"),
    Flag("cpu_test", bool, False, "run by JAX on the CPU, with one replica"),
    Flag("tpu", str, None, "name of the Cloud TPU that this machine is part of"),
    Flag("gcp_project", str, None, "its project (default: that of this machine)"),
    Flag("tpu_zone", str, None, "its zone (default: that of this machine)"),
    Flag("tf_version", str, "nightly", "runtime version to set on it"),
    Flag("enable_tpu_version_config", bool, True, "set that version, and wait until it is healthy"),
)
"""All but the task and the mode."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith tpu``."""
    parser.description = (
        "Trains a task on TPUs, or evaluates its checkpoints as they come, by JAX; with --cpu_test on the"
        " CPU. Needs: pip install 'monolith-torch[tpu]'. SIGINT or SIGTERM saves and ends. Exit codes: 0 done, 130"
        " stopped, else an error."
    )
    parser.epilog = "example: monolith tpu --task my_module:MyTask --model_dir /tmp/m --cpu_test"
    parser.add_argument("--task", metavar="TASK", help="module:Class of a task, or a registered name")
    parser.add_argument("--mode", choices=MODES, default="train", help="what to do (default: train)")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the result")
    for flag in FLAGS:
        shown = f" (default: {str(flag.default).lower()})" if flag.default not in (None, "") else ""
        options: dict[str, Any] = {"default": flag.default, "help": f"{flag.help}{shown}", "metavar": "VALUE"}
        if flag.kind is bool:
            parser.add_argument(f"--{flag.name}", nargs="?", const=True, type=_truth, **options)
        else:
            parser.add_argument(f"--{flag.name}", type=flag.kind, **options)


def _truth(text: str) -> bool:
    if text.lower() not in _TEXTS:
        raise argparse.ArgumentTypeError(f"true or false expected, got {text!r}")
    return _TEXTS[text.lower()]
