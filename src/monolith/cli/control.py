"""``monolith control``: stops, resumes and saves a running training, and says how far it is."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.errors import AlreadyExistsError, FailedPreconditionError, UnavailableError
from monolith.hooks.server import ClientCredentials, ControllerClient

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_ACTIONS = {
    "status": "show the step, and which workers train and which wait",
    "stop": "make all workers wait before their next step",
    "resume": "let them go on",
    "save": "save a checkpoint between two steps, and wait until it is written",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Describe the arguments of ``monolith control``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "control",
        help="stop, resume or save a running training, or show how far it is",
        description="Calls the controller of a running training, whose address stands in its model directory.",
        epilog="example: monolith control status --model_dir models/ranker --json",
    )
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, description in _ACTIONS.items():
        action = actions.add_parser(
            name,
            help=description,
            description=f"{description[0].upper()}{description[1:]}.",
            epilog=f"example: monolith control {name} --model_dir models/ranker",
        )
        _add_options(action)
    return parser


def run(args: argparse.Namespace) -> int:
    """Call the controller and print what it said."""
    credentials = ClientCredentials(
        token=_token(args), tls_ca=args.tls_ca, tls_certificate=args.tls_certificate, tls_key=args.tls_key
    )
    with ControllerClient.of_model_dir(
        args.model_dir, credentials=credentials, timeout_seconds=args.timeout_seconds
    ) as client:
        try:
            _CALLS[args.action](client)
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                "training is stopped already; 'monolith control resume' lets it go on (a save also stops it for a"
                " moment)"
            ) from error
        try:
            report = _Report(args.action, client.get_global_step(), *client.get_block_status())
        except (FailedPreconditionError, UnavailableError):
            if args.action == "status":
                raise
            report = _Report(args.action)  # it was done, and training has ended since
    sys.stdout.write(json.dumps(dataclasses.asdict(report)) if args.json else report.describe())
    sys.stdout.write("\n")
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Report:
    action: str
    global_step: int | None = None
    blocked: list[int] = dataclasses.field(default_factory=list)
    unblocked: list[int] = dataclasses.field(default_factory=list)

    def describe(self) -> str:
        done = {"stop": "stopped ", "resume": "resumed ", "save": "saved "}.get(self.action, "")
        if self.global_step is None:
            return f"{done.strip()}; training has ended since"
        waiting = f", waiting: {', '.join(map(str, self.blocked))}" if self.blocked else ""
        num_workers = len(self.blocked) + len(self.unblocked)
        return f"{done}at step {self.global_step}; {len(self.unblocked)} of {num_workers} workers train{waiting}"


_CALLS: dict[str, Callable[[ControllerClient], None]] = {
    "status": lambda _: None,
    "stop": ControllerClient.stop_training,
    "resume": ControllerClient.resume_training,
    "save": ControllerClient.save_checkpoint,
}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_dir", required=True, help="model directory of the training, local or remote")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a line")
    parser.add_argument(
        "--token", help="secret of the controller; others on this machine can see it, unlike --token_file"
    )
    parser.add_argument("--token_file", metavar="PATH", help="file with the secret of the controller")
    parser.add_argument("--tls_ca", metavar="PEM", help="authorities of the controller's certificate; turns TLS on")
    parser.add_argument(
        "--tls_certificate", metavar="PEM", help="certificate to show, where the controller asks for one"
    )
    parser.add_argument("--tls_key", metavar="PEM", help="private key of that certificate")
    parser.add_argument(
        "--timeout_seconds", type=float, metavar="S", help="how long to wait (default: 10, and 3600 for a save)"
    )


def _token(args: argparse.Namespace) -> str | None:
    if args.token is not None and args.token_file is not None:
        raise ValueError("--token and --token_file exclude each other; give one")
    if args.token_file is not None:
        return Path(args.token_file).read_text(encoding="utf-8").strip()
    token: str | None = args.token
    return token
