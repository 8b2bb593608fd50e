"""Finds possible faults in the text of a C++ file; clang-format puts spaces around every binary operator."""

from __future__ import annotations

import re

from cpp_text import without_noise
from mutation.mutant import Edit

_OPERATORS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "+": ("-",),
    "-": ("+",),
    "*": ("+",),
    "/": ("*",),
    "%": ("+",),
    "&&": ("||",),
    "||": ("&&",),
    "<<": (">>",),
    ">>": ("<<",),
    "&": ("|",),
    "|": ("&",),
    "+=": ("-=",),
    "-=": ("+=",),
}
_OPERATOR = re.compile(r"(?<=[\w\])}]) (<=|>=|==|!=|&&|\|\||<<|>>|\+=|-=|[-<>+*/%&|]) (?=[\w(!~*&-])")
_INTEGER = re.compile(r"(?<![\w.'])(\d+)(?=[uUlL]*\b)(?![\w.']*[.'x])")
_FLOAT = re.compile(r"(?<![\w.'])(\d+\.\d*)(?=f?\b|f?[^\w.])")
_WORD = re.compile(r"\b(true|false|std::min|std::max|atomic(?:Add|Min|Max)(?=\())\b")
_OTHER_WORDS = {
    "true": "false",
    "false": "true",
    "std::min": "std::max",
    "std::max": "std::min",
    # In kernels: a store, whatever other threads have written.
    "atomicAdd": "atomicExch",
    "atomicMin": "atomicExch",
    "atomicMax": "atomicExch",
}
_CONDITION = re.compile(r"\bif (?:constexpr )?\((?P<test>[^;{}]*?)\) (?:\{|return|continue|break|throw)")
_CALL_STATEMENT = re.compile(r"(?<=[;{}])\s*(?P<call>[\w.>:\[\]-]+\([^;{}]*\);)")
_NEGATION = re.compile(r"(?<![\w\])])(!)(?=[\w(])")
# Lines without effect on the results at run time: template declarations, messages and compile-time checks.
_QUIET_LINE = re.compile(r"^\s*(#|template\b|static_assert\b|using\b|namespace\b|assert\b|friend\b)|\bFail\(|\bthrow\b")
_DECLARATION = re.compile(r"(?:operator|return|throw|delete|else)\b")


def cpp_edits(text: str) -> list[Edit]:
    """List all possible faults of a file. Some of them do not compile; such mutants are not counted."""
    plain = without_noise(text)
    edits = [
        Edit(match.start(1), match.end(1), replacement, "")
        for match in _OPERATOR.finditer(plain)
        for replacement in _OPERATORS[match[1]]
    ]
    edits += [Edit(match.start(1), match.end(1), str(int(match[1]) + 1), "") for match in _INTEGER.finditer(plain)]
    edits += [Edit(match.start(1), match.end(1), _twice(match[1]), "") for match in _FLOAT.finditer(plain)]
    edits += [Edit(match.start(1), match.end(1), _OTHER_WORDS[match[1]], "") for match in _WORD.finditer(plain)]
    edits += [Edit(match.start(1), match.end(1), "", "") for match in _NEGATION.finditer(plain)]
    for match in _CONDITION.finditer(plain):
        start, end = match.span("test")
        edits.append(Edit(start, end, f"!({text[start:end]})", ""))
    for match in _CALL_STATEMENT.finditer(plain):
        if not _DECLARATION.match(match["call"]):
            edits.append(Edit(*match.span("call"), ";", ""))
    return [edit for edit in edits if not _QUIET_LINE.search(_line(plain, edit.start))]


def _line(text: str, position: int) -> str:
    end = text.find("\n", position)
    return text[text.rfind("\n", 0, position) + 1 : end if end >= 0 else len(text)]


def _twice(number: str) -> str:
    value = float(number)
    return repr(value * 2 if value else 1.0)
