"""Flags of a program: every option that can be written as a text is the flag of its name.

`monolith train` uses it, and so can a program of one's own::

    options = flags.parse(RunnerConfig(model_name="ranker"))  # code before flag before environment before file
    make_trainer(options, Ranker.params()).train()
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import itertools
import textwrap
from typing import TYPE_CHECKING, TypeVar

from monolith.train.compat.effects import Refused, Sets, effects_of
from monolith.train.compat.flat_config import FlatConfig, Origin, is_parsable
from monolith.train.config.trainer_config import TrainerConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def meaning_of(cls: type[FlatConfig], name: str) -> str:
    """Returns the docstring of an option; if it has none, that of the field of our own config that it sets."""
    if name in _docs_of(cls):
        return _docs_of(cls)[name]
    field = next((effect.field for effect in effects_of(cls)[name] if isinstance(effect, Sets)), None)
    if field is None:
        return ""
    section, _, own = field.rpartition(".")
    return _docs_of(type(getattr(TrainerConfig(), section)))[own]


_DOCS: dict[type, dict[str, str]] = {}


def _docs_of(cls: type) -> dict[str, str]:
    """Returns field -> its docstring, in the class and its bases."""
    if cls not in _DOCS:
        _DOCS[cls] = _read_docs(cls)
    return _DOCS[cls]


def _read_docs(cls: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # typed in at a prompt: there is no text to read
            continue
        fields = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, text in itertools.pairwise(fields):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                docs[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return docs


C = TypeVar("C", bound=FlatConfig)

_TARGET = "option_"
"""Prefix of the names of parsed flags, so that they never collide with an argument of the program itself."""


def flag_names(config: type[FlatConfig]) -> list[str]:
    """Returns the options that have a flag: those whose values can be parsed from a string."""
    return [name for name in config.option_names() if is_parsable(config, name)]


def add_flags(parser: argparse.ArgumentParser, config: type[FlatConfig], *, without: Collection[str] = ()) -> None:
    """Adds the flags of a config, and ``--config_file``, to a parser; ``--name`` alone sets a boolean one.

    Args:
        parser: Parser of the program.
        config: The class whose options they are.
        without: Options that the program sets itself; may include "config_file".
    """
    options = parser.add_argument_group("all other options of a run" if without else "options of a run")
    if "config_file" not in without:
        parser.add_argument("--config_file", metavar="FILE", help="a TOML or JSON file with options")
    for name in flag_names(config):
        if name in without:
            continue
        target, text = _TARGET + name, _help_of(config, name)
        if isinstance(config.default_of(name), bool):
            options.add_argument(f"--{name}", dest=target, metavar="VALUE", nargs="?", const="true", help=text)
        else:
            options.add_argument(f"--{name}", dest=target, metavar="VALUE", help=text)


def _help_of(config: type[FlatConfig], name: str) -> str:
    """Returns the meaning of an option; hides refused options, which `docs/options.md` explains."""
    if any(isinstance(effect, Refused) for effect in effects_of(config)[name]):
        return argparse.SUPPRESS
    default = config.default_of(name)
    shown = "" if default in (None, "") else f"(default: {str(getattr(default, 'name', default)).lower()})"
    return f"{meaning_of(config, name)} {shown}".strip().replace("%", "%%")


def take_flags(options: C, args: argparse.Namespace) -> C:
    """Sets options from parsed flags, then the environment, then the file; options set in code stay."""
    texts = {name.removeprefix(_TARGET): value for name, value in vars(args).items() if name.startswith(_TARGET)}
    options.update({name: value for name, value in texts.items() if value is not None}, Origin.FLAG)
    options.update_from_environment()
    if args.config_file is not None:
        try:
            options.update_from_file(args.config_file)
        except TypeError as error:
            raise ValueError(f"config file '{args.config_file}': {error}") from error
    return options


def parse(options: C, arguments: Sequence[str] | None = None) -> C:
    """Sets options from this program's flags, then the environment, then the file that ``--config_file`` names.

    Args:
        options: Options set in code; updated and returned.
        arguments: Arguments of the program; None: those of the command line.

    >>> from monolith.train import RunnerConfig
    >>> parse(RunnerConfig(index=1, num_workers=2), ["--index", "0", "--model_dir", "/m"])
    RunnerConfig(index=1, num_workers=2, model_dir='/m')
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, type(options))
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = [f"--{name}" for name in flag_names(type(options))]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"flags: {unknown[0]!r} is no option{hint}")
    return take_flags(options, args)
