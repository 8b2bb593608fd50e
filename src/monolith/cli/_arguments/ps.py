"""The arguments of ``monolith ps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.cli._arguments import train
from monolith.cli._arguments.worker import add_role_arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from monolith.cli import Arguments

MEANT = {
    "--server_index": "the number of this server is --index",
    "--ps_num": "the number of all servers is --num_ps",
    "--token": "others on this machine could see it; give --token_file",
    **train.ALERTS,
}


def form_of(words: Sequence[str]) -> Arguments | None:
    """Returns the other form of the command, ``monolith ps TASK``: a server of a job; None: a bare server."""
    if not words or words[0].startswith("-"):
        return None
    return ServerOfAJob()


class ServerOfAJob:
    """The arguments of ``monolith ps TASK``."""

    MEANT = train.MEANT

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the arguments."""
        add_role_arguments(
            parser,
            "ps",
            description="Runs one parameter server of a job, for schedulers that start every process themselves. It"
            " serves until the job has ended, and restores its state after a restart. Exit codes: 0 done, 130 stopped,"
            " 75 start it again, else an error.",
            example="--model_dir /shared/ranker --num_ps 2 --num_workers 2 --index 1 --discovery_type host"
            " --discovery_dir /shared/run-7",
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith ps``."""
    parser.allow_abbrev = False  # or --token would be taken for --token_file
    parser.description = (
        "Runs one parameter server: it keeps rows and dense weights for the workers of a job. It prints its"
        " address, and serves until it gets SIGTERM or SIGINT, or a client stops it. With a task, as in monolith"
        " ps TASK --help, it is a server of a job: it finds the others itself, and recovers what it held."
    )
    parser.epilog = "example: monolith ps --index 0 --num_ps 2 --host 10.0.0.7 --port 7000 --token_file secret.txt"
    parser.add_argument("--index", type=int, required=True, metavar="I", help="number of this server, from 0")
    parser.add_argument("--num_ps", type=int, required=True, metavar="N", help="number of all servers")
    parser.add_argument(
        "--host", default="127.0.0.1", help="interface to listen on; 0.0.0.0 for all (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=0, metavar="P", help="port to listen on (default: a free one)")
    parser.add_argument("--frame_port", type=int, default=0, metavar="P", help="port for batches (default: a free one)")
    parser.add_argument("--token_file", metavar="PATH", help="file with a secret shared with the clients")
    parser.add_argument("--tls_certificate", metavar="PEM", help="certificate of this server; turns TLS on")
    parser.add_argument("--tls_key", metavar="PEM", help="private key of that certificate")
    parser.add_argument("--tls_client_ca", metavar="PEM", help="authorities whose certificates clients must show")
    parser.add_argument("--threads", type=int, metavar="N", help="threads that answer batches (default: all cores)")
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="module with optimizers of yours for dense weights; may be given several times",
    )
    parser.add_argument(
        "--monolith_default_machine_info_mem_limit",
        type=int,
        metavar="BYTES",
        help="memory it may have in use; the chief stops training while it has more (default: no limit)",
    )
    parser.add_argument(
        "--recovery_dir",
        metavar="DIR",
        help="folder for the recovery record, from which a lost server is restored; the same for all servers (default:"
        " its state is lost with it)",
    )
    parser.add_argument(
        "--recovery_interval_seconds",
        type=float,
        metavar="S",
        help="how often the record is written, and the most that is lost (default: 10; 0: never)",
    )
    parser.add_argument(
        "--model_dir", metavar="DIR", help="with --recovery_dir: checkpoints of the job, to restore most rows from"
    )
    parser.add_argument(
        "--drain_seconds", type=float, default=5.0, metavar="S", help="for calls in flight at the end (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print the address as JSON instead of a line")
