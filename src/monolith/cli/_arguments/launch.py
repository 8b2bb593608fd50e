"""The arguments of ``monolith launch``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.cli._arguments.train import MEANT, PARAMS_OVERRIDE, HelpAll, add_mattering, add_option, add_resources
from monolith.cli._arguments.worker import shown_options

if TYPE_CHECKING:
    import argparse

__all__ = ["FINDING", "MEANT", "add_arguments"]

FINDING = ("discovery_type", "discovery_dir", "zk_server", "deep_insight_name", "uuid")
"""Options of discovery, for processes without a scheduler."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith launch``."""
    parser.description = (
        "Prints a job of several processes as a manifest for a scheduler, and on standard error what to do"
        " with it. Nothing is started; on this machine and on Ray, monolith train starts a job itself."
    )
    parser.epilog = (
        "example: monolith launch my_module:MyTask --print k8s --image registry/ranker:7 --model_dir"
        " s3://bucket/ranker --num_ps 4 --num_workers 8 > job.yaml"
    )
    parser.usage = "monolith launch TASK --print k8s|yarn --model_dir DIR --num_ps N --num_workers N [options]"
    parser.allow_abbrev = False
    parser.add_argument("--help-all", action=HelpAll, help="show every option; docs/options.md also has the refused")
    what = parser.add_argument_group("what to print")
    what.add_argument("task", metavar="TASK", help="module:Class of a monolith.Task, or a registered name")
    what.add_argument("--print", dest="scheduler", choices=("k8s", "yarn"), required=True, help="for which scheduler")
    what.add_argument("--name", help="of the job there (default: made from the task)")
    what.add_argument("--image", help="image with monolith and the task; k8s needs one, yarn may do without")
    what.add_argument("--namespace", help="of k8s (default: default)")
    what.add_argument("--volume_claim", metavar="NAME", help="of k8s: claim of the volume at --model_dir")
    what.add_argument("--port", type=int, metavar="P", help="of k8s: on which processes listen (default: 7000)")
    what.add_argument("--queue", metavar="NAME", help="of yarn: to which the job is submitted (default: default)")
    what.add_argument(
        "--max_restarts", metavar="N", type=int, help="how often a process is started again (default: 10)"
    )
    add_resources(what)
    job = parser.add_argument_group("what each process does")
    job.add_argument("--max_steps", metavar="N", type=int, help="train until the global step is this")
    add_option(job, PARAMS_OVERRIDE)
    job.add_argument("--config_file", metavar="FILE", help="a TOML or JSON file with options")
    job.add_argument("--deterministic", action="store_true", help="repeat bit for bit: seed fixed, time from data")
    finding = parser.add_argument_group("how the processes find each other (k8s: by pod names, by default)")
    for name in FINDING:
        add_option(finding, shown_options()[name])
    add_mattering(parser)
