"""The command line: ``monolith <command>``. Thin: parse, build a config, call.

Every module of this package is a command; its docstring's first line is its line in ``monolith --help``. It has two
functions: ``add_arguments(parser)`` declares its arguments, ``run(args)`` does the work and returns the exit status. A
command with slow imports has the first of them in `_arguments`, so that help is fast. Read `doctor` and its arguments
first. The package may import every other one.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import pkgutil
import re
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from monolith._version import __version__
from monolith.cli._failures import failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_PIPE_CLOSED = 128 + 13

__all__ = ["Arguments", "Command", "main", "outcome_of"]


class Arguments(Protocol):
    """Declaration of a command's arguments: its own module, or that of its name in `_arguments`.

    It may also have ``MEANT``: flags of other programs, and their equivalents here; and, for a command of two forms,
    ``form_of(words)``, which declares the other form, or returns None.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the command's arguments and describes it, with an example in the epilog."""


class Command(Protocol):
    """Interface of a module of this package.

    It may also have ``add_flags(parser)``, for arguments that depend on its imports; help omits them.
    """

    def run(self, args: argparse.Namespace) -> int:
        """Does the work and returns the exit status; user errors are raised as ValueError or OpError."""


class _OneLineParser(argparse.ArgumentParser):
    """An argument parser whose error is one line that names the help command."""

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is not None:
            close = difflib.get_close_matches(choice[1], re.findall(r"[\w-]+", choice[2]), n=1)
            message += f"; did you mean {close[0]}?" if close else ""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def command_names() -> list[str]:
    """Returns the names of all commands: one for each module here."""
    return sorted(name for name in _modules_in(__path__) if not name.startswith("_"))


def _modules_in(path: Iterable[str]) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(path)]


def load_command(name: str) -> Command:
    """Returns the module that does the work."""
    return cast("Command", importlib.import_module(f"{__name__}.{name}"))


def load_arguments(name: str) -> Arguments:
    """Returns the module that describes a command."""
    package = f"{__name__}._arguments"
    is_apart = name in _modules_in(importlib.import_module(package).__path__)
    return cast("Arguments", importlib.import_module(f"{package if is_apart else __name__}.{name}"))


def _summary_of(name: str) -> str:
    """Returns the summary of a command from the first line of its module, without importing it."""
    with (Path(__file__).parent / f"{name}.py").open(encoding="utf-8") as source:
        first_line = source.readline()
    return first_line.strip().strip('"').partition(": ")[2].rstrip(".")


def _unknown(unknown: Sequence[str], parser: argparse.ArgumentParser, meant: Mapping[str, str]) -> str:
    """Returns the message for unknown arguments: their meaning here, or similar known ones."""
    flag = unknown[0].partition("=")[0]
    if flag in meant:
        return f"unrecognized arguments: {' '.join(unknown)}; {meant[flag]}"
    flags = [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001 - argparse has no other way
    close = difflib.get_close_matches(flag, flags, n=1)
    return f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {close[0]}?" if close else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 done, 1 failed, 2 usage error, 74 storage failed.

    A command whose output is not read to its end, as by ``monolith train ... | head -1``, ends quietly with 141, as the
    shell reports a program that SIGPIPE ended.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = _parse(words)
    args.arguments, args.owns_process = words, arguments is None
    return outcome_of(args, lambda: load_command(args.command).run(args))


def outcome_of(args: argparse.Namespace, work: Callable[[], int]) -> int:
    """Returns the exit status of a command's work; prints user errors as one line."""
    try:
        status = work()
        sys.stdout.flush()
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _drop_unread_output():
            return _PIPE_CLOSED
        failure = failure_of(error, command=args.command, task=getattr(args, "task", None))
        if failure is None:
            raise
        text, status = failure
        sys.stderr.write(text)
    return status


def _drop_unread_output() -> bool:
    """Returns whether the reader of the output has closed it; drops the rest, so that the interpreter exits quietly."""
    is_closed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            number = stream.fileno()
        except (OSError, ValueError):  # it was replaced by something without a descriptor
            continue
        watched = select.poll()
        watched.register(number, 0)
        if any(event & select.POLLERR for _, event in watched.poll(0)):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, number)
            os.close(nothing)
            is_closed = True
    return is_closed


def _parse(words: list[str]) -> argparse.Namespace:
    """Returns the arguments of a command; imports no more than its help needs, if help is all that is wanted."""
    parser = _OneLineParser(
        prog="monolith", description="Trains recommenders on live traffic.", epilog="example: monolith doctor --json"
    )
    parser.add_argument("--version", action="version", version=f"monolith {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    names = command_names()
    chosen = words[0] if words and words[0] in names else None
    if chosen is None:
        for name in names:
            subparsers.add_parser(name, help=_summary_of(name))
        return parser.parse_args(words)  # ends here: with help, the version or a complaint
    described = load_arguments(chosen)
    described = getattr(described, "form_of", lambda _: None)(words[1:]) or described
    command_parser = subparsers.add_parser(chosen)
    described.add_arguments(command_parser)
    add_flags = None if {"-h", "--help"}.intersection(words) else getattr(load_command(chosen), "add_flags", None)
    if add_flags is not None:
        add_flags(command_parser)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        command_parser.error(_unknown(unknown, command_parser, getattr(described, "MEANT", {})))
    return args
