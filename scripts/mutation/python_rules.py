"""Finds possible faults in a Python file: other comparisons, operators, constants; lost calls, returns and branches."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from mutation.mutant import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "+",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
_OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNTESTED_FUNCTIONS = frozenset({"__repr__", "__str__"})
_CALLS_THAT_ONLY_REPORT = re.compile(r"log|^print$|^super$", re.IGNORECASE)
_KEYWORDS_THAT_ONLY_GUARD = frozenset({"strict", "stacklevel", "frozen", "slots", "kw_only", "daemon"})


def python_edits(text: str) -> list[Edit]:
    """List all possible faults of a file; messages, annotations, decorators and docstrings are not changed."""
    finder = _Finder(text)
    finder.visit(ast.parse(text))
    return finder.edits


class _Finder(ast.NodeVisitor):
    def __init__(self, text: str) -> None:
        self.edits: list[Edit] = []
        self._text = text
        self._scope: list[str] = []
        self._in_function = False
        self._line_starts = [0]
        for line in text.split("\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        self._lines = text.split("\n")

    # Source positions; ast counts columns in bytes.

    def _offset(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column].decode()
        return self._line_starts[line - 1] + len(before)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
        )

    def _source(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._text[start:end]

    def _replace(self, start: int, end: int, replacement: str) -> None:
        scope = ".".join(self._scope).removesuffix(".<locals>")
        self.edits.append(Edit(start, end, replacement, scope))

    def _replace_between(self, left: ast.expr, right: ast.expr, replacement: str) -> None:
        """Replace the operator between two operands, and keep parentheses around them."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._text[start:end]
        operator = between.strip(" \t\n()\\")
        if operator and "#" not in between:
            at = start + between.index(operator)
            self._replace(at, at + len(operator), replacement)

    # Scopes.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        was_in_function, self._in_function = self._in_function, False
        self._scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()
        self._in_function = was_in_function

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _UNTESTED_FUNCTIONS:
            return
        was_in_function, self._in_function = self._in_function, True
        self._scope.append(node.name)
        for default in [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]:
            self.visit(default)
        self._scope.append("<locals>")
        for statement in node.body:
            self.visit(statement)
        del self._scope[-2:]
        self._in_function = was_in_function

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast requires

    # Nodes that are not changed.
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings: their text is for people."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip assertions: they do not change results."""

    def visit_Import(self, node: ast.Import) -> None:
        """Skip imports."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        if self._in_function and node.exc is not None:
            self._replace(*self._span(node), "pass")

    def visit_If(self, node: ast.If) -> None:
        if self._source(node.test).endswith("TYPE_CHECKING"):
            return
        self._swap_branches(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._swap_branches(node.test)
        self.generic_visit(node)

    # Nodes that are changed.
    def _swap_branches(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare):  # visit_Compare offers the opposite of a comparison
            self._replace(*self._span(test), f"not ({self._source(test)})")

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            for replacement in _COMPARISONS[type(operator)]:
                self._replace_between(left, right, replacement)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        replacement = "or" if isinstance(node.op, ast.And) else "and"
        if len(node.values) == 2:  # with more operands, a mix of both operators would group differently
            self._replace_between(node.values[0], node.values[1], replacement)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(isinstance(side, ast.Constant | ast.JoinedStr) and not _is_number(side) for side in _sides(node))
        if type(node.op) in _ARITHMETIC and not is_text:
            self._replace_between(node.left, node.right, _ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _ARITHMETIC:
            start, end = self._span(node.target)[1], self._span(node.value)[0]
            sign = self._text[start:end].strip(" (")
            at = start + self._text[start:end].index(sign)
            self._replace(at, at + len(sign), _ARITHMETIC[type(node.op)] + "=")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            start, end = self._span(node)
            self._replace(start, end, f"({self._source(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace(*self._span(node), str(not value))
        elif isinstance(value, int):
            self._replace(*self._span(node), str(value + 1))
        elif isinstance(value, float):
            self._replace(*self._span(node), repr(value * 2 if value else 1.0))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(*self._span(node), "return None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and _only_reports(call):
            return
        if isinstance(call, ast.Call):
            self._replace(*self._span(node), "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _OTHER_NAMES:
            self._replace(*self._span(node.func), _OTHER_NAMES[node.func.id])
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in _KEYWORDS_THAT_ONLY_GUARD:
                self.visit(keyword.value)


def _sides(node: ast.BinOp) -> Iterator[ast.expr]:
    yield node.left
    yield node.right


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _only_reports(call: ast.Call) -> bool:
    name = call.func
    while isinstance(name, ast.Attribute | ast.Call):
        name = name.value if isinstance(name, ast.Attribute) else name.func
    return isinstance(name, ast.Name) and bool(_CALLS_THAT_ONLY_REPORT.search(name.id))
