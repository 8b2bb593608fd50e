"""``monolith ps``: runs a parameter server, which keeps rows and dense weights for workers of other processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from monolith import _core
from monolith.ps import PsServer

if TYPE_CHECKING:
    import argparse


def run(args: argparse.Namespace) -> int:
    """Serve until the end is asked for."""
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
        token=_token(args.token_file),
        tls_certificate=args.tls_certificate,
        tls_key=args.tls_key,
        tls_client_ca=args.tls_client_ca,
        num_threads=args.threads,
        modules=tuple(args.module),
        memory_limit_bytes=args.monolith_default_machine_info_mem_limit,
    )
    with server:
        before = [signal.signal(each, lambda *_: server.stop(args.drain_seconds)) for each in _ENDINGS]
        try:
            sys.stdout.write(_told(server, as_json=args.json) + "\n")
            sys.stdout.flush()
            server.wait()
        finally:
            for each, handler in zip(_ENDINGS, before, strict=True):
                signal.signal(each, handler)
    return 0


_ENDINGS = (signal.SIGTERM, signal.SIGINT)


def _told(server: PsServer, *, as_json: bool) -> str:
    if as_json:
        told = {
            "index": server.index,
            "num_ps": server.options.num_ps,
            "address": server.address,
            "frame_address": server.frame_address,
            "pid": os.getpid(),
        }
        return json.dumps(told)
    return (
        f"parameter server {server.index} of {server.options.num_ps} serves on {server.address}"
        f" (batches on {server.frame_address})"
    )


def _token(path: str | None) -> str | None:
    return None if path is None else Path(path).read_text(encoding="utf-8").strip()
