"""Arguments of commands that start all processes of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

RESOURCES = ("ps_cpus", "ps_memory", "worker_cpus", "worker_memory")
"""Resources that each kind of process requests."""
MAX_RESTARTS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments by which ``monolith train`` starts the processes of a job."""
    group = parser.add_argument_group("how the processes of a job are started")
    group.add_argument(
        "--launcher",
        choices=("local", "ray"),
        help="local: processes of this machine; ray: actors of a Ray cluster (default: local, for several workers)",
    )
    group.add_argument(
        "--max_restarts",
        metavar="N",
        type=int,
        help=f"how often in a row a process that died is started again (default: {MAX_RESTARTS})",
    )
    group.add_argument(
        "--ray_address",
        metavar="ADDRESS",
        help="of --launcher ray: a running cluster, such as auto or HOST:6379 (default: RAY_ADDRESS, else a new one on"
        " this machine)",
    )
    add_resources(group, "of --launcher ray: ")


def add_resources(group: argparse._ArgumentGroup, condition: str = "") -> None:
    """Adds the options of the resources that a scheduler reserves for the processes of a job."""
    for kind, name in (("ps", "server"), ("worker", "worker")):
        group.add_argument(
            f"--{kind}_cpus", metavar="N", type=float, help=f"{condition}processors of a {name} (default: 1)"
        )
        group.add_argument(
            f"--{kind}_memory", metavar="BYTES", help=f"{condition}memory of a {name}, such as 16Gi (default: 4Gi)"
        )
