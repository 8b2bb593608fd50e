"""``monolith control``: stops, resumes and saves a running training, and shows its progress and rows."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from monolith.cli._option_values import credentials_of, secret_in
from monolith.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, UnavailableError
from monolith.hooks.server import ControllerClient
from monolith.ps import PsCluster
from monolith.train.roles import look_up, read_debugging_info

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_DEBUG_SECONDS = 10.0


def run(args: argparse.Namespace) -> int:
    """Calls the controller and prints its response."""
    return _show_row(args) if args.action == "debug" else _call(args)


def _call(args: argparse.Namespace) -> int:
    credentials = credentials_of(args, _token(args))
    with ControllerClient.of_model_dir(
        args.model_dir, credentials=credentials, timeout_seconds=args.timeout_seconds
    ) as client:
        try:
            _CALLS[args.action](client)
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                "training is stopped already; 'monolith control resume' resumes it (a save also stops it briefly)"
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


def _show_row(args: argparse.Namespace) -> int:
    """Returns a row, from the servers that the model directory names."""
    info = read_debugging_info(args.model_dir)
    tls = {"tls_ca": args.tls_ca, "tls_certificate": args.tls_certificate, "tls_key": args.tls_key}
    seconds = _DEBUG_SECONDS if args.timeout_seconds is None else args.timeout_seconds
    with PsCluster(info.ps_addrs, token=_token(args), timeout_seconds=seconds, **tls) as cluster:
        row = look_up(info, cluster, args.slot, args.id)
    if row is None:
        raise NotFoundError(f"slot {args.slot!r} has no row for id {args.id} on any of {len(info.ps_addrs)} servers")
    fields = {
        "slot": args.slot,
        "id": args.id,
        "server": row.server,
        "address": info.ps_addrs[row.server],
        "weights": list(row.weights),
    }
    shown = f"server {row.server} at {fields['address']}: {' '.join(f'{weight:g}' for weight in row.weights)}"
    sys.stdout.write(f"{json.dumps(fields) if args.json else shown}\n")
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


def _token(args: argparse.Namespace) -> str | None:
    if args.token is not None and args.token_file is not None:
        raise ValueError("--token and --token_file exclude each other; give one")
    token: str | None = args.token
    return secret_in(args.token_file) if token is None else token
