"""The arguments of ``monolith control``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

_ACTIONS = {
    "status": "show the step, and which workers train and which wait",
    "stop": "make all workers wait before their next step",
    "resume": "resume training on all workers",
    "save": "save a checkpoint between two steps, and wait until it is written",
    "debug": "show a row as the parameter servers of a job have it",
}
_MORE = {"debug": " --slot user --id 7"}
"""Additional arguments in the example of an action."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith control``."""
    parser.description = (
        "Calls the controller of a running training, or its parameter servers, whose addresses stand in its"
        " model directory."
    )
    parser.epilog = "example: monolith control status --model_dir models/ranker --json"
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, description in _ACTIONS.items():
        action = actions.add_parser(
            name,
            help=description,
            description=f"{description[0].upper()}{description[1:]}.",
            epilog=f"example: monolith control {name} --model_dir models/ranker{_MORE.get(name, '')}",
        )
        _add_options(action)
        if name == "debug":
            action.add_argument("--slot", required=True, help="name of the slot, as the model has it")
            action.add_argument("--id", type=int, required=True, metavar="I", help="the id whose row is shown")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_dir", required=True, help="model directory of the training, local or remote")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a line")
    parser.add_argument(
        "--token", help="secret of the controller; others on this machine can see it, unlike --token_file"
    )
    parser.add_argument(
        "--token_file", metavar="PATH", help="file with the secret of the controller, or of the servers"
    )
    parser.add_argument("--tls_ca", metavar="PEM", help="authorities of the controller's certificate; turns TLS on")
    parser.add_argument("--tls_certificate", metavar="PEM", help="client certificate, if the controller requires one")
    parser.add_argument("--tls_key", metavar="PEM", help="private key of that certificate")
    parser.add_argument(
        "--timeout_seconds", type=float, metavar="S", help="how long to wait (default: 10, and 3600 for a save)"
    )
