"""The arguments of ``monolith worker TASK`` and ``monolith ps TASK``: one process of a job, started by a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.cli._arguments.train import MEANT, PARAMS_OVERRIDE, HelpAll, Option, add_mattering, add_option

if TYPE_CHECKING:
    import argparse

__all__ = ["MEANT", "PLACE", "add_arguments", "add_role_arguments", "shown_options"]

PLACE = {
    "which process of the job this is": (
        Option("index", "number of this process in its role; worker 0 is the chief", default=0, metavar="I"),
        Option("num_ps", "parameter servers of the job", default=0, metavar="N"),
        Option("num_workers", "workers of the job, the chief among them", default=1, metavar="N"),
        Option("host", "interface to listen on and to be found at (default: this machine's)", metavar="HOST"),
        Option("token_file", "file with a secret that all processes of the job share", metavar="FILE"),
    ),
    "how the processes find each other": (
        Option("discovery_type", "host, zk, consul (default), primus (TF_CONFIG), mlp, or another's", metavar="NAME"),
        Option("discovery_dir", "of host: a folder that all of them reach, one for each job", metavar="DIR"),
        Option("zk_server", "of zk: servers of ZooKeeper, separated by commas", metavar="HOSTS"),
        Option("deep_insight_name", "of zk: name of the job", metavar="NAME"),
        Option("uuid", "of consul: name of the run", default="", metavar="NAME"),
        Option("tf_config", "of primus: the cluster and the place in it; or TF_CONFIG", metavar="JSON"),
    ),
}
"""Group to its options."""

WITHOUT = frozenset({"num_ps", "num_workers"})
"""Options that stand among those of the place."""


def shown_options() -> dict[str, Option]:
    """Returns the options of a process's identity, by name."""
    return {option.name: option for options in PLACE.values() for option in options}


def add_role_arguments(parser: argparse.ArgumentParser, name: str, *, description: str, example: str) -> None:
    """Declares the arguments of the command of a role."""
    parser.description = description
    parser.epilog = f"example: monolith {name} my_module:MyTask {example}"
    parser.usage = f"monolith {name} TASK --model_dir DIR --num_ps N --num_workers N --index I [options]"
    parser.allow_abbrev = False
    parser.set_defaults(role=name)
    parser.add_argument("--help-all", action=HelpAll, help="show every option; docs/options.md also has the refused")
    what = parser.add_argument_group("what to do")
    what.add_argument("task", metavar="TASK", help="module:Class of a monolith.Task, or a registered name")
    what.add_argument("--max_steps", metavar="N", type=int, help="train until the global step is this")
    add_option(what, PARAMS_OVERRIDE)
    what.add_argument("--config_file", metavar="FILE", help="a TOML or JSON file with options")
    what.add_argument("--deterministic", action="store_true", help="repeat bit for bit: seed fixed, time from data")
    what.add_argument("--print-config", action="store_true", help="print every option, its value and its origin")
    what.add_argument("--json", action="store_true", help="print the result as JSON")
    for title, options in PLACE.items():
        group = parser.add_argument_group(title)
        for option in options:
            add_option(group, option)
    add_mattering(parser, without=WITHOUT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith worker``."""
    add_role_arguments(
        parser,
        "worker",
        description="Runs one worker of a job, for schedulers that start every process themselves; worker 0 is the"
        " chief, which restores and saves. It waits for the others, trains until the job ends, and resumes after a"
        " restart. SIGTERM or SIGINT lets the job save and end; a second one ends this process. Exit codes: 0 done, 130"
        " stopped, 75 start it again, else an error.",
        example="--model_dir /shared/ranker --num_ps 2 --num_workers 2 --index 1 --discovery_type host"
        " --discovery_dir /shared/run-7",
    )
