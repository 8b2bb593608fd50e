"""The possible faults of a C++ file, found in its text."""

from __future__ import annotations

import pytest

from mutation.cpp_rules import cpp_edits
from mutation.mutant import mutants_of


def changes(text: str) -> list[str]:
    return [mutant.change for mutant in mutants_of("core", "file.cc", text, cpp_edits(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bool x = a < b;", ["< -> <=", "< -> >="]),
        ("bool x = a != b && c;", ["!= -> ==", "&& -> ||"]),
        ("float x = a - b[i];", ["- -> +"]),
        ("x += y;", ["+= -> -="]),
        ("int x = 30;", ["30 -> 31"]),
        ("float x = 0.5f;", ["0.5 -> 1.0"]),
        ("bool x = true;", ["true -> false"]),
        ("int x = std::min(a, b);", ["std::min -> std::max"]),
        ("bool x = !y;", ["! -> (nothing)"]),
        ("if (x.empty()) return;", ["x.empty() -> !(x.empty())"]),
        ("void F() {\n  lock.Release();\n}", ["lock.Release(); -> ;"]),
        ("void F() {\n  __syncthreads();\n}", ["__syncthreads(); -> ;"]),
        ("x = atomicMin(word, place);", ["atomicMin -> atomicExch"]),
    ],
)
def test_every_rule_finds_its_faults(text: str, expected: list[str]) -> None:
    assert changes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "// a < b, 3",
        'const char* text = "a < b";',
        "#define LIMIT 3",
        "template <int N = 3>",
        "static_assert(sizeof(Row) == 16);",
        "std::vector<std::span<int>> rows;",
        "T* pointer; T& reference = other;",
        "uint32_t id32; constexpr long kBig = 1'000'000;",
        "throw Error(1 + 2);",
    ],
)
def test_comments_strings_types_and_compile_time_checks_have_no_faults(text: str) -> None:
    assert changes(text) == []
