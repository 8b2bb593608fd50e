"""The possible faults of a Python file: each is a small change that still parses."""

from __future__ import annotations

import ast

import pytest

from mutation.mutant import mutants_of
from mutation.python_rules import python_edits


def changes(text: str) -> list[str]:
    return [mutant.change for mutant in mutants_of("area", "file.py", text, python_edits(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b", ["< -> <=", "< -> >="]),
        ("a >= b", [">= -> <", ">= -> >"]),
        ("a == b", ["== -> !="]),
        ("a is not None", ["is not -> is"]),
        ("a not in b", ["not in -> in"]),
        ("(a) <= (b)", ["<= -> <", "<= -> >"]),
        ("a and b", ["and -> or"]),
        ("x = a + b", ["+ -> -"]),
        ("x -= y", ["-= -> +="]),
        ("x = -y", ["-y -> (y)"]),
        ("x = not y", ["not y -> (y)"]),
        ("x = 600", ["600 -> 601"]),
        ("x = 0.5", ["0.5 -> 1.0"]),
        ("x = True", ["True -> False"]),
        ("call(y)", ["call(y) -> pass"]),
        ("x = min(y)", ["min -> max"]),
        ("if x:\n    y = z", ["x -> not (x)"]),
        ("x = y if z else w", ["z -> not (z)"]),
        ("def f():\n    return x", ["return x -> return None"]),
        ("def f():\n    raise E('1')", ["raise E('1') -> pass"]),
        ("def f(x=2):\n    pass", ["2 -> 3"]),
    ],
)
def test_every_rule_finds_its_faults(text: str, expected: list[str]) -> None:
    assert changes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""Text with 1 < 2."""',
        'x = f"{1 + 2}"',
        "x: tuple[int, 3]",
        "@cache(size=3)\ndef f():\n    pass",
        "if TYPE_CHECKING:\n    x = 1",
        "_LOG.info('step %d', 1)",
        "def f():\n    return None",
        "def __repr__(self):\n    return 'x' * 3",
        "assert x < 3",
        "x = zip(a, b, strict=True)",
        "x = 'a' + b",
    ],
)
def test_texts_for_people_and_tools_have_no_faults(text: str) -> None:
    assert changes(text) == []


def test_every_fault_in_a_file_with_accents_and_long_lines_parses_and_changes_one_place() -> None:
    text = 'x = "é", 1 < y\nz = (\n    a  # é\n    + b * c\n) or d\n'
    edits = python_edits(text)
    assert [edit.apply(text) for edit in edits] == [
        text.replace(" < ", " <= "),
        text.replace(" < ", " >= "),
        text.replace("1", "2"),
        text.replace(" or ", " and "),
        text.replace(" * ", " + "),
    ]
    for edit in edits:
        ast.parse(edit.apply(text))


def test_a_fault_has_the_qualified_name_of_its_function() -> None:
    text = "class A:\n    n = 1\n    def f(self):\n        def g():\n            return 2\n        return g\n"
    scopes = {text[edit.start : edit.end]: edit.scope for edit in python_edits(text)}
    assert scopes == {"1": "A", "2": "A.f.<locals>.g", "return 2": "A.f.<locals>.g", "return g": "A.f"}


def test_a_mutant_keeps_its_key_under_new_lines_and_equal_lines_have_different_keys() -> None:
    text = "x = 1\nx = 1\n"
    longer = "import os\n\n" + text
    keys = [mutant.key for mutant in mutants_of("area", "file.py", text, python_edits(text))]
    assert [mutant.key for mutant in mutants_of("area", "file.py", longer, python_edits(longer))] == keys
    assert len(set(keys)) == 2
