"""``monolith launch``: prints a job as a manifest for Kubernetes or YARN."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

from monolith.cli._arguments.launch import FINDING
from monolith.cli._arguments.train import mattering_options
from monolith.cli._launching import plan_of
from monolith.cli._option_values import without_none
from monolith.cli._run_options import options_of
from monolith.launch.manifests import K8sJob, YarnService, yaml_text
from monolith.train.compat import RunnerConfig, require_effective
from monolith.train.parameters import flags

if TYPE_CHECKING:
    import argparse

_NOT_FLAGS = frozenset({"config_file", "index", "is_local", "mode", "server_type", "task", "tf_config"})
_ONLY = {"k8s": ("namespace", "volume_claim", "port"), "yarn": ("queue",)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The options of a run beyond those that matter most."""
    flags.add_flags(parser, RunnerConfig, without={*_NOT_FLAGS, *mattering_options(), *FINDING})


def run(args: argparse.Namespace) -> int:
    """Print the manifest, and on standard error how it is used."""
    options = options_of(args)
    require_effective(options)
    for scheduler, names in _ONLY.items():
        foreign = [name for name in names if getattr(args, name) is not None]
        if foreign and scheduler != args.scheduler:
            raise ValueError(f"--{foreign[0]}: is of --print {scheduler}, got --print {args.scheduler}; leave it out")
    scheduler_options = without_none({name: getattr(args, name) for name in _ONLY[args.scheduler]})
    plan, name = plan_of(options, args), args.name or _name_of(args.task)
    if args.scheduler == "k8s":
        job = K8sJob(plan=plan, name=name, image=args.image or "", **scheduler_options)
        sys.stdout.write(yaml_text(job.documents()))
        sys.stderr.write(job.how_to())
    else:
        service = YarnService(plan=plan, name=name, image=args.image, **scheduler_options)
        sys.stdout.write(f"{json.dumps(service.document(), indent=2)}\n")
        sys.stderr.write(service.how_to())
    return 0


def _name_of(task: str) -> str:
    """``my_module:DeepRanker`` as ``deep-ranker``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", task.rpartition(":")[2])
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:40].rstrip("-")
