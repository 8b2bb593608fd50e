"""``monolith log``: lists, shows, verifies, follows and compacts delta logs."""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from monolith.cli._key_values import key_values
from monolith.cli._log.compacting import compact
from monolith.cli._log.lines import HEAD, document_of, line_of
from monolith.cli._log.listing import listed, shown_list
from monolith.cli._log.verifying import verify
from monolith.deltalog import DeltaLog
from monolith.errors import UnavailableError
from monolith.observe.progress import Progress
from monolith.stop_request import StopRequest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from monolith.deltalog import PartReader

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
    if args.kafka and not args.place.startswith("kafka:"):
        raise ValueError(f"--kafka: '{args.place}' is no topic; leave it out")
    with DeltaLog(args.place, **options) as log:
        log.parts()  # raises if there is no log
        yield log


def _list(log: DeltaLog, args: argparse.Namespace) -> int:
    found = listed(log)
    _print(json.dumps(found, indent=2) if args.json else shown_list(found))
    return 0


def _show(log: DeltaLog, args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        readers = _readers(log, args, stack)
        found = [each for reader in readers for each in reader]
    if args.json:
        _print(json.dumps([document_of(each) for each in found], indent=2))
    else:
        _print("\n".join([HEAD, *map(line_of, found)]))
    return 0


def _verify(log: DeltaLog, args: argparse.Namespace) -> int:
    with Progress(unit="records") as progress:
        _parts(log, args.part)
        report = verify(log, part=args.part, progress=progress)
    _print(json.dumps(report.document, indent=2) if args.json else report.text)
    return 1 if report.is_wrong else 0


def _follow(log: DeltaLog, args: argparse.Namespace) -> int:
    """Ctrl-C is how it ends."""
    stop = StopRequest()
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: stop.set()))
        readers = _readers(log, args, stack)
        if not args.json:
            _print(HEAD)
        since = time.monotonic()
        while not stop.is_set():
            found = [each for reader in readers if (each := reader.read()) is not None]
            for each in found:
                _print(json.dumps(document_of(each)) if args.json else line_of(each))
            if found:
                since = time.monotonic()
                continue
            behind = args.until_caught_up and [each for each in readers if each.lag.increments]
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


def _parts(log: DeltaLog, wanted: str | None) -> list[str]:
    parts = log.parts()
    if wanted is not None and wanted not in parts:
        raise ValueError(f"--part: '{log.place}' has no part '{wanted}', but {', '.join(parts) or 'none'}")
    return parts if wanted is None else [wanted]


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
