"""``monolith log``: lists, shows, verifies, follows and compacts delta logs."""

from __future__ import annotations

import inspect
import json
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from monolith.cli._log_upkeep import compact, verify
from monolith.cli._option_values import key_values
from monolith.deltalog import DeltaLog, IncrementKind, transport_of
from monolith.errors import DataLossError, UnavailableError
from monolith.observe import Progress
from monolith.stop_request import StopRequest
from monolith.tables.formats import BlockKind, PackedBlocks

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from monolith.deltalog import Increment, PartReader

_POLL_SECONDS = 0.05
_UNFINISHED_SECONDS = 5.0
"""How long `--until_caught_up` waits for a record that is being written."""


def run(args: argparse.Namespace) -> int:
    """Do one action; `verify` returns 1 if something is wrong."""
    actions: dict[str, Callable[[DeltaLog, argparse.Namespace], int]] = {
        "list": _list,
        "show": _show,
        "verify": _verify,
        "follow": _follow,
        "compact": _compact,
    }
    with _opened(args) as log:
        return actions[args.action](log, args)


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[DeltaLog]:
    options: dict[str, Any] = {}
    if args.kafka:
        options["client"] = key_values(args.kafka, "--kafka")
    if getattr(args, "base_folder", None) is not None:
        options["base_folder"] = args.base_folder
    if args.kafka and "client" not in inspect.signature(transport_of(args.place)).parameters:
        raise ValueError(f"--kafka: '{args.place}' is no topic; leave it out")
    with DeltaLog(args.place, **options) as log:
        log.parts()  # raises if there is no log
        yield log


def _list(log: DeltaLog, args: argparse.Namespace) -> int:
    contents = listed(log)
    _print(json.dumps(contents, indent=2) if args.json else shown_list(contents))
    return 0


def _show(log: DeltaLog, args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        readers = _readers(log, args, stack)
        increments = [increment for reader in readers for increment in reader]
    if args.json:
        _print(json.dumps([document_of(increment) for increment in increments], indent=2))
    else:
        _print("\n".join([HEAD, *map(line_of, increments)]))
    return 0


def _verify(log: DeltaLog, args: argparse.Namespace) -> int:
    with Progress(unit="records") as progress:
        _parts(log, args.part)
        report = verify(log, part=args.part, progress=progress)
    _print(json.dumps(report.document, indent=2) if args.json else report.text)
    return 1 if report.is_wrong else 0


def _follow(log: DeltaLog, args: argparse.Namespace) -> int:
    """Prints increments as they come, until SIGINT or SIGTERM."""
    stop = StopRequest()
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: stop.set()))
        readers = _readers(log, args, stack)
        if not args.json:
            _print(HEAD)
        since = time.monotonic()
        while not stop.is_set():
            increments = [increment for reader in readers if (increment := reader.read()) is not None]
            for increment in increments:
                _print(json.dumps(document_of(increment)) if args.json else line_of(increment))
            if increments:
                since = time.monotonic()
                continue
            behind = args.until_caught_up and [reader for reader in readers if reader.lag.increments]
            if args.until_caught_up and not behind:
                break
            if behind and time.monotonic() - since >= _UNFINISHED_SECONDS:
                raise UnavailableError("; ".join(map(_unfinished, behind)))
            readers[0].wait(_POLL_SECONDS if behind or len(readers) > 1 else 1.0, stop)
    return 0


def _unfinished(reader: PartReader) -> str:
    return (
        f"part {reader.part!r}: not caught up: {reader.lag.increments} increments ({reader.lag.bytes} bytes) after"
        f" {reader.where or 'the beginning'} are unfinished; their writer is writing them or was killed"
    )


def _compact(log: DeltaLog, args: argparse.Namespace) -> int:
    with Progress(unit="increments") as progress:
        base, firsts = compact(log, keep_bases=args.keep_bases, progress=progress)
    document = {"base": base.name, "path": base.path, "numbers": base.numbers, "first": dict(firsts)}
    lines = [f"base {base.name}: {base.path}"]
    lines += [f"  {part}: up to increment {number}" for part, number in sorted(base.numbers.items())]
    lines += [f"  {part}: the log begins at increment {first}" for part, first in sorted(firsts.items())]
    _print(json.dumps(document, indent=2) if args.json else "\n".join(lines))
    return 0


def _readers(log: DeltaLog, args: argparse.Namespace, stack: ExitStack) -> list[PartReader]:
    """Returns a reader for each requested part, from `--last` increments before its end."""
    if args.last is not None and args.last < 0:
        raise ValueError(f"--last must be >= 0, got {args.last}")
    parts = _parts(log, args.part)
    readers = []
    for part in parts:
        extent = log.extent(part)
        number = None
        if args.last is not None and extent is not None:
            number = max(extent.first, extent.next - args.last)
        readers.append(stack.enter_context(log.open_reader(part, number=number)))
    return readers


def _parts(log: DeltaLog, part: str | None) -> list[str]:
    parts = log.parts()
    if part is not None and part not in parts:
        raise ValueError(f"--part: '{log.place}' has no part '{part}', but {', '.join(parts) or 'none'}")
    return parts if part is None else [part]


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


_FORM = "{:<24} {:>8} {:>10} {:<8} {:>19} {:>9} {:>9} {:>8} {:>9} {:>12}"
HEAD = _FORM.format(
    "part", "number", "generation", "kind", "written", "step", "examples", "rows", "removed", "bytes"
).rstrip()


def document_of(increment: Increment) -> dict[str, Any]:
    """Returns all fields of an increment but the payload, for JSON."""
    rows, removed = _counts(increment)
    return {
        "part": increment.part,
        "number": increment.number,
        "generation": increment.generation,
        "kind": increment.kind.name.lower(),
        "step": increment.step,
        "examples": increment.examples,
        "oldest_event_ms": increment.oldest_event_ms,
        "newest_event_ms": increment.newest_event_ms,
        "published_ms": increment.published_ms,
        "rows": rows,
        "removed": removed,
        "bytes": len(increment.payload),
        "mark": list(increment.mark),
        "needs": dict(increment.needs),
        "base": increment.base,
        "schema": increment.payload.decode(errors="replace") if increment.kind is IncrementKind.OPENING else None,
    }


def line_of(increment: Increment) -> str:
    """Describes an increment in one line."""
    rows, removed = _counts(increment)
    kind = increment.kind.name.lower()
    written = "" if not increment.published_ms else time_text(increment.published_ms)
    numbers = (f"{number:,}" for number in (increment.step, increment.examples, rows, removed, len(increment.payload)))
    line = _FORM.format(increment.part, increment.number, increment.generation, kind, written, *numbers)
    return line + (f"  begins with base {increment.base}" if increment.base is not None else "")


def time_text(milliseconds: int) -> str:
    """Returns a time as local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def _counts(increment: Increment) -> tuple[int, int]:
    """Returns the numbers of rows and of removed ids."""
    if increment.kind is not IncrementKind.ROWS or not increment.payload:
        return 0, 0
    counts = {BlockKind.SERVING: 0, BlockKind.TOMBSTONE: 0}
    try:
        for block in PackedBlocks(increment.payload):
            counts[block.kind] = counts.get(block.kind, 0) + block.count
    except DataLossError as error:
        raise DataLossError(f"part {increment.part!r}, increment {increment.number}: {error.message}") from error
    return counts[BlockKind.SERVING], counts[BlockKind.TOMBSTONE]


def listed(log: DeltaLog) -> dict[str, Any]:
    """Parts with what they have, and bases, the oldest first."""
    parts = []
    for part in log.parts():
        extent = log.extent(part)
        if extent is not None:
            parts.append(
                {
                    "part": part,
                    "first": extent.first,
                    "last": extent.next - 1,
                    "increments": extent.next - extent.first,
                    "generation": extent.generation,
                }
            )
    return {"place": log.place, "parts": parts, "bases": [asdict(base) for base in log.bases()]}


def shown_list(contents: dict[str, Any]) -> str:
    """Returns the contents of a log as lines."""
    form = "{:<24} {:>10} {:>10} {:>10}".format
    lines = [form("part", "first", "last", "generation")]
    lines += [form(part["part"], part["first"], part["last"], part["generation"]) for part in contents["parts"]]
    if not contents["parts"]:
        lines = ["no parts"]
    for base in contents["bases"]:
        numbers = ", ".join(f"{part} {number}" for part, number in sorted(base["numbers"].items()))
        lines.append(f"base {base['name']} ({base['kind']}, {time_text(base['created_ms'])}): up to {numbers}")
    return "\n".join(lines)
