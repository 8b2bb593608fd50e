"""``monolith tpu``: trains a task on TPUs by JAX, or evaluates its checkpoints; on the CPU to try it."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

from monolith.cli._arguments.tpu import FLAGS
from monolith.cli._failures import INTERRUPTED
from monolith.cli._run_options import command_of, find_tasks_here, saved_text, tell
from monolith.hooks import ProgressHook, StopOnSignal
from monolith.observe import Progress
from monolith.tpu import TpuConfig, main, require_versions

if TYPE_CHECKING:
    import argparse


def run(args: argparse.Namespace) -> int:
    """Train or evaluate; 0 done, 130 stopped by a signal."""
    options = TpuConfig(task=args.task, mode=args.mode, **{flag.name: getattr(args, flag.name) for flag in FLAGS})
    try:
        require_versions()
    except ImportError as error:
        raise ValueError(str(error)) from error
    if options.model_dir is None and not options.cpu_test:
        raise ValueError("--model_dir: set the directory of the model, such as --model_dir /tmp/my_model")
    find_tasks_here()
    if options.mode == "train":
        return _train(options, args)
    try:
        metrics = main(options)
    except TypeError as error:
        if options.mode != "train_and_eval":
            raise
        raise ValueError(str(error)) from error
    assert isinstance(metrics, dict)  # noqa: S101 - what an evaluation returns
    if args.json:
        sys.stdout.write(f"{json.dumps(metrics)}\n")
    else:
        sys.stdout.writelines(f"{name}: {value:g}\n" for name, value in sorted(metrics.items()))
    return 0


def _train(options: TpuConfig, args: argparse.Namespace) -> int:
    with Progress(file=io.StringIO() if args.json else None) as bar:
        stop = StopOnSignal(bar)
        try:
            state = main(options, hooks=[ProgressHook(bar), stop])
        finally:
            stop.restore()
            if stop.received is not None:
                bar.close()
                tell(f"resume with: {command_of(args)}")
    assert not isinstance(state, dict)  # noqa: S101 - what training returns
    rows = sum(embeddings.num_rows for embeddings in state.embeddings.values())
    if args.json:
        result = {"global_step": state.global_step, "rows": rows, "model_dir": options.model_dir}
        sys.stdout.write(f"{json.dumps(result)}\n")
    elif state.global_step and options.model_dir is None:
        tell(f"step {state.global_step:,} with {rows:,} rows was tried, and not saved: there is no --model_dir")
    elif state.global_step:
        tell(saved_text(state.global_step, rows, options.model_dir))
    else:
        tell("no step was trained, and nothing saved")
    return 0 if stop.received is None else INTERRUPTED
