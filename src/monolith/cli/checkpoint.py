"""``monolith checkpoint``: list, show, verify, compare and copy checkpoints."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from monolith.checkpoint import SavedState, inspection, resolve
from monolith.cli._arguments.checkpoint import OF_SERVING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


def run(args: argparse.Namespace) -> int:
    """Do one action; `verify` and `diff` return 1 if something is wrong or different."""
    actions: dict[str, Callable[[argparse.Namespace], tuple[Any, str, int]]] = {
        "list": _list,
        "show": _show,
        "verify": _verify,
        "diff": _diff,
        "export": _export,
        "reshard": _reshard,
    }
    document, text, status = actions[args.action](args)
    sys.stdout.write(json.dumps(document, indent=2) if args.json else text)
    sys.stdout.write("\n")
    return status


def _list(args: argparse.Namespace) -> tuple[Any, str, int]:
    checkpoints = inspection.list_checkpoints(args.path)
    rows = [
        (
            str(checkpoint.step),
            _time(checkpoint.created),
            str(checkpoint.generation),
            checkpoint.kind,
            f"{checkpoint.rows:,}",
            _size(checkpoint.bytes),
            " ".join(name for name in ("latest", "exempt") if getattr(checkpoint, name)),
        )
        for checkpoint in checkpoints
    ]
    head = ("step", "saved", "generation", "kind", "rows", "size", "")
    return (
        [dataclasses.asdict(checkpoint) for checkpoint in checkpoints],
        _table(head, rows) if rows else "no checkpoints",
        0,
    )


def _show(args: argparse.Namespace) -> tuple[Any, str, int]:
    state = SavedState(resolve(args.path))
    manifest = state.manifest
    document: dict[str, Any] = {
        "path": state.path,
        "step": manifest.step,
        "generation": manifest.generation,
        "created": manifest.created,
        "kind": manifest.kind,
        "bytes": manifest.num_bytes,
        "positions": manifest.all_positions,
        "tables": {name: tables.rows for name, tables in manifest.tables.items()},
        "tensors": {
            name: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            for name, tensor in state.tensors().items()
        },
        "optimizers": sorted(manifest.state["optimizers"]),
        "schedules": sorted(manifest.state["schedules"]),
        "extra": sorted(manifest.state["extra"]),
    }
    plain = {name: value for name, value in document.items() if not isinstance(value, dict)}
    lines = [f"{name}: {value}" for name, value in {**plain, "created": _time(manifest.created)}.items()]
    for name in ("positions", "tables", "tensors"):
        lines += [f"{name}:", *(f"  {key}  {value}" for key, value in sorted(document[name].items()))]
    return document, "\n".join(lines), 0


def _verify(args: argparse.Namespace) -> tuple[Any, str, int]:
    path = resolve(args.path)
    num_bytes = SavedState(path).verify()
    return {"path": path, "bytes": num_bytes, "ok": True}, f"{path}: {_size(num_bytes)} read, all as written", 0


def _diff(args: argparse.Namespace) -> tuple[Any, str, int]:
    differences = inspection.diff(resolve(args.path), resolve(args.other))
    same = (
        not (differences["positions"] or differences["tensors"] or differences["tables"])
        and differences["step"][0] == differences["step"][1]
    )
    lines = [f"step: {differences['step'][0]}, {differences['step'][1]}"]
    for part in ("positions", "tensors", "tables"):
        lines += (
            [f"{part}:", *(f"  {name}: {value}" for name, value in differences[part].items())]
            if differences[part]
            else []
        )
    return differences, "equal" if same else "\n".join(lines), 0 if same else 1


def _export(args: argparse.Namespace) -> tuple[Any, str, int]:
    if args.serving:
        # Only this action needs models, and what serves them.
        answer: tuple[Any, str, int] = importlib.import_module("monolith.cli._export").export_for_serving(args)
        return answer
    unused = [name for name in OF_SERVING if getattr(args, name)]
    if unused:
        raise ValueError(f"export: --{unused[0]} is about a model to serve; give --serving, too")
    files = inspection.export(resolve(args.path), args.target)
    return {"target": args.target, "files": files}, "\n".join(f"{args.target}/{name}" for name in files), 0


def _reshard(args: argparse.Namespace) -> tuple[Any, str, int]:
    path = inspection.reshard(resolve(args.path), args.target, num_files=args.files)
    return {"path": path, "files": args.files}, path, 0


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(line.rstrip() for line in lines)
