"""The budget checker sees what it should; `.ci/lint` runs it on the project."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from script_module import load_script


@pytest.fixture(scope="module")
def budgets() -> ModuleType:
    return load_script("check-budgets")


def test_python_functions_are_measured_with_their_docstrings(budgets: ModuleType) -> None:
    text = 'def f():\n    """Say.\n\n    More.\n    """\n    return 1\n'
    assert [(function.name, function.lines) for function in budgets.python_functions(text)] == [("f", 6)]


CPP = """
#define OPEN {
namespace a {
struct alignas(64) Row { int key = 0; };
enum class Kind { kOne, kTwo };
const char* kText = "{ not a brace";  // nor this {
const char kBrace = '{';
constexpr int kTable[] = {1, 2'000, 3};
template <typename T>
T Twice(T value) {
  auto add = [&](T other) {
    return value + other;
  };
  return add(value);
}
class Pool {
 public:
  int size() const { return size_; }
  ~Pool() {
    /* { */
  }
};
TEST(PoolTest, Grows) {
  EXPECT_EQ(R"({{)", "{{");
}
}  // namespace a
"""


def test_cpp_functions_are_found_among_scopes_strings_and_comments(budgets: ModuleType) -> None:
    found = [(function.name, function.lines) for function in budgets.cpp_functions(CPP)]
    assert found == [("Twice", 7), ("size", 1), ("~Pool", 3), ("PoolTest.Grows", 3)]


def test_a_long_file_and_a_long_function_are_over_their_budgets(
    budgets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "ROOT", tmp_path)
    path = tmp_path / "long.cc"
    path.write_text("void Long() {\n" + "  Step();\n" * 900 + "}\n")
    file_excess, function_excess = budgets.excesses(path)
    assert (file_excess.place, file_excess.count, file_excess.fails) == ("long.cc", 902, True)
    assert (function_excess.place, function_excess.count, function_excess.fails) == ("long.cc:1 Long", 902, True)


def test_an_exception_lets_its_subject_pass_the_hard_limit(
    budgets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "ROOT", tmp_path)
    monkeypatch.setattr(budgets, "EXCEPTIONS", {"long.py:f": "a table of cases"})
    path = tmp_path / "long.py"
    path.write_text("def f():\n" + "    step()\n" * 100)
    (excess,) = budgets.excesses(path)
    assert excess.count == 101
    assert not excess.fails


def test_what_is_within_budget_is_not_mentioned(
    budgets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "ROOT", tmp_path)
    path = tmp_path / "short.py"
    path.write_text("def f():\n" + "    step()\n" * 39)
    assert list(budgets.excesses(path)) == []


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of a door, its module, two users of a third module, and one user of a fourth."""
    sources = {
        "__init__.py": "",
        "__init__.pyi": "from .offered import name as name\n",
        "offered.py": "from package.single import x\nfrom package.shared import x\n",
        "other.py": "import package.shared\n",
        "shared.py": "x = 1\n",
        "single.py": "x = 1\n",
    }
    folder = tmp_path / "package"
    folder.mkdir()
    for name, text in sources.items():
        (folder / name).write_text(text)
    return folder


def test_a_small_module_with_one_user_is_named_unless_its_package_offers_it(budgets: ModuleType, package: Path) -> None:
    assert budgets.single_use_modules(package) == ["package.single"]
    (excess,) = budgets.package_excesses(package)
    assert excess.count == 1
    assert not excess.fails
    (package / "single.py").write_text("x = 1\n" * budgets.SINGLE_USE_LINES)
    assert budgets.single_use_modules(package) == []


def test_a_directory_of_many_modules_is_over_its_budget(budgets: ModuleType, package: Path) -> None:
    for number in range(budgets.PACKAGE_MODULES_HARD + 1):
        (package / f"many_{number}.py").touch()
    excess = next(budgets.package_excesses(package))
    assert (excess.place, excess.unit, excess.fails) == ("package", "modules", True)
