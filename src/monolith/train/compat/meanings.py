"""Meaning of an option: the text under its line in the table, for help and for ``docs/options.md``."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from typing import TYPE_CHECKING

from monolith.train.compat.effects import Sets, effects_of
from monolith.train.config.trainer_config import TrainerConfig

if TYPE_CHECKING:
    from monolith.train.compat.flat_config import FlatConfig

__all__ = ["meaning_of"]


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
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except (OSError, TypeError):  # typed in at a prompt: there is no text to read
            continue
        fields = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, text in itertools.pairwise(fields):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found
