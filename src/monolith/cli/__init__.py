"""The command line: ``monolith <command>``. Thin: parse, build a config, call.

Every module of this package is a command and brings two functions: ``add_parser(subparsers)`` describes its arguments,
``run(args)`` does the work and returns the exit status. `doctor` is the one to read first. The package may import every
other one.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import pkgutil
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from monolith._version import __version__
from monolith.errors import FileUnavailableError, OpError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Command", "main"]

_FAILED = 1
_STORAGE_FAILED = 74
"""EX_IOERR of sysexits.h: a supervisor may start the run elsewhere."""


class Command(Protocol):
    """What a module of this package offers."""

    def add_parser(self, subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        """Describe the command's arguments, with an example in the epilog."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and return the exit status; what the user did wrong is raised as a ValueError or OpError."""
        ...


class _OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line that says where help is."""

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is not None:
            close = difflib.get_close_matches(choice[1], re.findall(r"[\w-]+", choice[2]), n=1)
            message += f"; did you mean {close[0]}?" if close else ""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def find_commands() -> Mapping[str, Command]:
    """Every command by name: a new module here is a new command."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name: cast("Command", importlib.import_module(f"{__name__}.{name}")) for name in names}


def _suggestion(unknown: str, parser: argparse.ArgumentParser) -> str:
    flags = [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001 - argparse has no other way
    close = difflib.get_close_matches(unknown.partition("=")[0], flags, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 not understood, 74 storage failed."""
    commands = find_commands()
    parser = _OneLineParser(
        prog="monolith",
        description="Trains recommenders on live traffic.",
        epilog="example: monolith doctor --json",
    )
    parser.add_argument("--version", action="version", version=f"monolith {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    for command in commands.values():
        command.add_parser(subparsers)
    given = list(sys.argv[1:] if arguments is None else arguments)
    args, unknown = parser.parse_known_args(given)
    if unknown:
        command_parser = subparsers.choices[args.command]
        command_parser.error(f"unrecognized arguments: {' '.join(unknown)}{_suggestion(unknown[0], command_parser)}")
    args.arguments = given
    try:
        return commands[args.command].run(args)
    except (OpError, OSError, ValueError) as error:
        sys.stderr.write(f"monolith {args.command}: error: {' '.join(str(error).split())}\n")
        return _STORAGE_FAILED if _is_of_storage(error) else _FAILED


def _is_of_storage(error: Exception) -> bool:
    """Whether it is the storage that fails: another start on this machine will hardly do better."""
    return isinstance(error, FileUnavailableError) or (isinstance(error, OSError) and error.errno == errno.EIO)
