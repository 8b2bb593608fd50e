"""``monolith ps``: runs a parameter server, which keeps rows and dense weights for workers of other processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import torch

from monolith import _core
from monolith.cli._option_values import secret_in, without_none
from monolith.ps import PsServer
from monolith.ps.recovery import RecoveryConfig

if TYPE_CHECKING:
    import argparse


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The options of a run, for a server of a job; a bare one has none."""
    if parser.get_default("role") is not None:
        from monolith.cli import _roles  # noqa: PLC0415 - all that trains, which a bare server needs nothing of

        _roles.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serves until requested to stop."""
    if getattr(args, "role", None) is not None:
        from monolith.cli import _roles  # noqa: PLC0415 - see above

        return _roles.run_role_command(args)
    return _run_bare(args)


def _run_bare(args: argparse.Namespace) -> int:
    if args.drain_seconds < 0:
        raise ValueError(f"--drain_seconds must be >= 0, got {args.drain_seconds}")
    if args.threads is not None and args.threads >= 1:
        _core.set_num_threads(args.threads)
        torch.set_num_threads(args.threads)
    server = PsServer(
        args.index,
        num_ps=args.num_ps,
        host=args.host,
        port=args.port,
        frame_port=args.frame_port,
        token=secret_in(args.token_file),
        tls_certificate=args.tls_certificate,
        tls_key=args.tls_key,
        tls_client_ca=args.tls_client_ca,
        num_threads=args.threads,
        modules=tuple(args.module),
        memory_limit_bytes=args.monolith_default_machine_info_mem_limit,
        recovery=_recovery(args),
    )
    with server:
        before = [signal.signal(number, lambda *_: server.stop(args.drain_seconds)) for number in _ENDINGS]
        try:
            sys.stdout.write(_status_line(server, as_json=args.json) + "\n")
            sys.stdout.flush()
            server.wait()
        finally:
            for number, handler in zip(_ENDINGS, before, strict=True):
                signal.signal(number, handler)
    return 0


_ENDINGS = (signal.SIGTERM, signal.SIGINT)


def _status_line(server: PsServer, *, as_json: bool) -> str:
    if as_json:
        fields = {
            "index": server.index,
            "num_ps": server.options.num_ps,
            "address": server.address,
            "frame_address": server.frame_address,
            "pid": os.getpid(),
            "recovered_rows": None if server.recovered is None else server.recovered.rows,
        }
        return json.dumps(fields)
    recovered = "" if server.recovered is None else f"; it recovered {server.recovered.rows} rows"
    return (
        f"parameter server {server.index} of {server.options.num_ps} serves on {server.address}"
        f" (batches on {server.frame_address}){recovered}"
    )


def _recovery(args: argparse.Namespace) -> RecoveryConfig | None:
    options = {"interval_seconds": args.recovery_interval_seconds, "model_dir": args.model_dir}
    named = without_none(options)
    if args.recovery_dir is None:
        if named:
            raise ValueError("--recovery_interval_seconds and --model_dir need --recovery_dir, where the record goes")
        return None
    return RecoveryConfig(args.recovery_dir, **named)
