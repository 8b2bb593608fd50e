"""How a command runs: alone, as one process of a job, or as the launcher of all of them."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from monolith.cli._arguments.train import MAX_RESTARTS, RESOURCES
from monolith.cli._run_options import command_of, saved_text, tell
from monolith.launch import (
    DONE,
    INTERRUPTED,
    LaunchPlan,
    LocalLauncher,
    RayLauncher,
    Resources,
    RestartConfig,
    bytes_of,
    local_job,
)
from monolith.train.compat import MODES, Origin, RunnerConfig, effects_of, job_of

if TYPE_CHECKING:
    import argparse

    from monolith.launch import Body, RoleKind

Way: TypeAlias = Literal["alone", "role", "local", "ray"]

_PLACES = ("server_type", "index", "discovery_type", "tf_config")
"""Options of this process's identity in a job, or of how it discovers the others."""


def way_of(options: RunnerConfig, args: argparse.Namespace) -> Way:
    """Returns how the command runs; refuses arguments of a launcher where nothing is launched."""
    way = _way_of(options, args.launcher)
    launched = {"local": ("max_restarts",), "ray": ("max_restarts", "ray_address", *RESOURCES)}.get(way, ())
    for name in ("max_restarts", "ray_address", *RESOURCES):
        if getattr(args, name) is not None and name not in launched:
            launchers = "--launcher local or --launcher ray" if name == "max_restarts" else "--launcher ray"
            raise ValueError(f"--{name}: is of {launchers}; give that, too, or leave it out")
    if way != "alone":
        _require_training(options, args)
    if way in ("local", "ray"):
        _require_no_place(options)
    return way


def _way_of(options: RunnerConfig, launcher: Literal["local", "ray"] | None) -> Way:
    if launcher is not None:
        return launcher
    default = RunnerConfig()
    if any(getattr(options, name) != getattr(default, name) for name in _PLACES):
        return "role"
    if options.num_workers > 1:
        return "role" if any(options.is_set(name) for name in _PLACES) else "local"
    return "role" if options.is_set("discovery_type") else "alone"


def _require_training(options: RunnerConfig, args: argparse.Namespace) -> None:
    if MODES[options.mode] != "train":
        raise ValueError(
            f"--mode {options.mode}: a job of several processes trains; omit --num_workers and --launcher, and one"
            " process reads what the job has saved"
        )
    if args.out is not None or args.key:
        raise ValueError(f"--out and --key are of --mode predict, got --mode {options.mode}; omit them")
    if args.steps is not None:
        raise ValueError("--steps: the processes of a job end at one global step; give it as --max_steps")


def _require_no_place(options: RunnerConfig) -> None:
    for name in ("server_type", "index"):
        if options.is_set(name):
            raise ValueError(
                f"--{name}: specifies which process this is, and a launcher starts all of them; omit it, or omit"
                " --launcher"
            )


def alone_options(options: RunnerConfig) -> RunnerConfig:
    """Returns the options without those of a job, to inspect the task in this process."""
    kept = {
        name: value
        for name, value, origin in options.describe()
        if origin is not Origin.DEFAULT and job_of(effects_of(RunnerConfig)[name]) is None
    }
    return RunnerConfig().update({**kept, "is_local": True}, Origin.CODE)


def plan_of(options: RunnerConfig, args: argparse.Namespace) -> LaunchPlan:
    """Returns the processes to start; refuses a job that cannot run."""
    limit = MAX_RESTARTS if args.max_restarts is None else args.max_restarts
    if limit < 0:
        raise ValueError(f"--max_restarts: must be >= 0, got {limit}")
    return LaunchPlan(
        task=args.task,
        options=options,
        max_steps=args.max_steps,
        deterministic=args.deterministic,
        restarts=RestartConfig(limit=limit),
        resources=resources_of(args),
    )


def resources_of(args: argparse.Namespace) -> dict[RoleKind, Resources]:
    """Returns the requested resources of each kind of process; omits kinds without any."""
    resources: dict[RoleKind, Resources] = {}
    kinds: tuple[RoleKind, ...] = ("ps", "worker")
    for kind in kinds:
        cpus, memory = getattr(args, f"{kind}_cpus"), getattr(args, f"{kind}_memory")
        values: dict[str, Any] = {} if cpus is None else {"cpus": cpus}
        if memory is not None:
            values["memory_bytes"] = bytes_of(memory)
        if values:
            resources[kind] = Resources(**values)
    return resources


def launch(plan: LaunchPlan, args: argparse.Namespace, *, body: Body | None = None) -> int:
    """Runs a job to its end on this machine, where roles may be forks, or on Ray, and reports the outcome."""
    launcher: LocalLauncher | RayLauncher
    with contextlib.ExitStack() as stack:
        if args.launcher == "ray":
            launcher = RayLauncher(plan, address=args.ray_address, has_progress=not args.json)
        else:
            job = stack.enter_context(local_job(plan))
            launcher = LocalLauncher(job, has_progress=not args.json, body=body)
        exit_code = launcher.run()
    result, model_dir = launcher.result, plan.options.model_dir
    if args.json:
        sys.stdout.write(f"{json.dumps({**result, 'model_dir': model_dir, 'restarts': launcher.restarts})}\n")
    elif exit_code in (DONE, INTERRUPTED) and result.get("global_step"):
        expired = result.get("expired_rows", 0)
        tell(saved_text(result["global_step"], result.get("rows"), model_dir, expired=expired))
    if exit_code == INTERRUPTED:
        tell(f"resume with: {command_of(args)}")
    return exit_code
