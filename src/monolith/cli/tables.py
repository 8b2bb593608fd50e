"""``monolith tables``: removes rows of a model, from a running training or from its checkpoints."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint import ModelDirLock, split_path
from monolith.cli._option_values import credentials_of, secret_in
from monolith.data import text_ids
from monolith.deltalog.publish import checkpoints_at, erase_from_checkpoint
from monolith.errors import NotFoundError, UnavailableError
from monolith.hooks.server import ControllerClient

if TYPE_CHECKING:
    import argparse

_INT64 = range(-(2**63), 2**63)


def run(args: argparse.Namespace) -> int:
    """Erases rows, and prints how many there were."""
    ids = _ids(args)
    client = None if args.dry_run or args.offline else _controller(args)
    if client is None:
        document = _erase_from_checkpoints(args, ids)
    else:
        with client:
            document = _erase_from_training(args, ids, client)
    if args.json:
        sys.stdout.write(f"{json.dumps(document)}\n")
    return 0


def _erase_from_training(args: argparse.Namespace, ids: list[int], client: ControllerClient) -> dict[str, Any]:
    older = _checkpoints_or_none(args.path)
    try:
        rows = client.erase(args.slot, ids)
    except UnavailableError as error:
        raise UnavailableError(f"{error.message} --offline erases from the checkpoints alone") from error
    _say(args, f"{rows} rows of {len(ids)} ids of slot {args.slot!r} were erased from the training; saving it")
    client.save_checkpoint()
    left = [path for path in _checkpoints_or_none(args.path) if path in older]
    if left:
        _say(args, f"checkpoints that still have the rows, until they are replaced: {', '.join(left)}")
    return {"slot": args.slot, "ids": len(ids), "rows": rows, "older_checkpoints": left}


def _erase_from_checkpoints(args: argparse.Namespace, ids: list[int]) -> dict[str, Any]:
    paths = checkpoints_at(args.path)
    done = "were found" if args.dry_run else "were erased"
    checkpoints = []
    with ExitStack() as locked:
        for folder in [] if args.dry_run else sorted({split_path(path)[0] for path in paths}):
            locked.enter_context(ModelDirLock(folder))
        for path in paths:
            erased = erase_from_checkpoint(path, args.slot, torch.tensor(ids), dry_run=args.dry_run)
            checkpoints.append({"path": path, "rows": erased.rows})
            _say(args, f"{path}: {erased.rows} rows of {len(ids)} ids of slot {args.slot!r} {done}")
    return {
        "slot": args.slot,
        "ids": len(ids),
        "rows": sum(checkpoint["rows"] for checkpoint in checkpoints),
        "checkpoints": checkpoints,
    }


def _controller(args: argparse.Namespace) -> ControllerClient | None:
    """Of the training that runs with this directory; None: there is none."""
    try:
        return ControllerClient.of_model_dir(args.path, credentials=credentials_of(args, secret_in(args.token_file)))
    except NotFoundError:
        return None


def _checkpoints_or_none(path: str) -> list[str]:
    try:
        return checkpoints_at(path)
    except NotFoundError:
        return []


def _ids(args: argparse.Namespace) -> list[int]:
    texts = list(args.ids)
    if args.ids_file is not None:
        lines = Path(args.ids_file).read_text(encoding="utf-8").splitlines()
        texts += [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ValueError("erase: give ids by --ids or --ids_file, got none")
    if args.texts is not None:
        ids: list[int] = text_ids(args.texts or args.slot, texts).tolist()
        return ids
    return [_id(text) for text in texts]


def _id(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"erase: an id must be an int64, got {text!r}; with --texts, texts are hashed") from None
    if number not in _INT64:
        raise ValueError(f"erase: an id must be an int64, got {text}")
    return number


def _say(args: argparse.Namespace, line: str) -> None:
    """A line as it is known, unless JSON comes at the end."""
    if not args.json:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
