"""Names that other packages add, and what is refused about them."""

from __future__ import annotations

import abc
import sys
from pathlib import Path

import pytest

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.extensions import Registry
from other_packages import installed, write_package

GROUP = "monolith.test_shapes"


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> float: ...

    @abc.abstractmethod
    def edges(self) -> int: ...


class Square(Shape):
    def area(self) -> float:
        return 1.0

    def edges(self) -> int:
        return 4


def registry(**builtin: str) -> Registry:
    return Registry(GROUP, builtin or {"square": f"{__name__}:Square"}, Shape, setting="shape")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages derive from the interface of this file."""
    monkeypatch.setitem(sys.modules, "shapes_of_test", sys.modules[Shape.__module__])


def package(folder: Path, name: str, *entries: str, code: str = "") -> Path:
    return write_package(folder, name, "\n".join([f"[{GROUP}]", *entries]), f"from shapes_of_test import *\n{code}")


def test_a_class_of_this_package_is_imported_when_it_is_used() -> None:
    shapes = registry(square=f"{__name__}:Square", missing="no_such_module:Shape")
    assert shapes.names() == ["square", "missing"]
    assert shapes.get("square") is Square
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        shapes.get("missing")


def test_a_class_of_another_package_is_found_while_that_is_installed(tmp_path: Path) -> None:
    site = package(tmp_path, "ext_round", "circle = ext_round:Circle", code="class Circle(Square): ...")
    shapes = registry()
    with installed(site):
        assert shapes.names() == ["square", "circle"]
        assert shapes.get("circle").__name__ == "Circle"
        assert issubclass(shapes.get("circle"), Shape)
    assert shapes.names() == ["square"]


def test_an_unknown_name_is_refused_with_the_one_that_was_probably_meant(tmp_path: Path) -> None:
    site = package(tmp_path, "ext_oval", "oval = ext_oval:Oval")
    with installed(site), pytest.raises(InvalidArgumentError) as refused:
        registry().get("ovall")
    assert refused.value.message == "shape must be one of square, oval, got 'ovall'; did you mean 'oval'?"
    with pytest.raises(InvalidArgumentError, match=r"must be one of square, got 'x'; install the package that adds it"):
        registry().get("x")


def test_a_class_that_cannot_be_imported_names_package_and_cause(tmp_path: Path) -> None:
    site = package(tmp_path, "ext_broken", "star = ext_broken:Star", code="1 / 0")
    with installed(site), pytest.raises(FailedPreconditionError) as refused:
        registry().get("star")
    assert refused.value.message == (
        "shape 'star': ext_broken:Star of the package ext_broken cannot be imported, repair or uninstall it:"
        " ZeroDivisionError: division by zero"
    )
    assert isinstance(refused.value.__cause__, ZeroDivisionError)


def test_a_module_without_the_class_names_package_and_cause(tmp_path: Path) -> None:
    site = package(tmp_path, "ext_renamed", "star = ext_renamed:Star")
    with installed(site), pytest.raises(FailedPreconditionError, match=r"ext_renamed cannot be .*AttributeError.*Star"):
        registry().get("star")


@pytest.mark.parametrize(
    ("code", "lack"),
    [
        ("class Star(Shape):\n    def area(self): return 2.0", "edges"),
        ("class Star:\n    def edges(self): return 10", "area"),
        ("Star = {}", "area, edges"),
        ("class Star:\n    def edges(self): ...\n    def area(self): ...", "this base"),
        ("import abc\nclass Star(Square):\n    @abc.abstractmethod\n    def tips(self): ...", "tips"),
    ],
)
def test_what_is_missing_of_the_interface_is_named(tmp_path: Path, code: str, lack: str) -> None:
    name = f"ext_{tmp_path.name.strip('_')}"
    site = package(tmp_path, name, f"star = {name}:Star", code=code)
    with installed(site), pytest.raises(FailedPreconditionError) as refused:
        registry().get("star")
    said = f"of the package {name} must be a class that derives from Shape and has all of its methods, got "
    assert said in refused.value.message
    assert refused.value.message.endswith(f" without {lack}; correct the package")


def test_the_name_of_a_class_of_this_package_cannot_be_taken(tmp_path: Path) -> None:
    site = package(
        tmp_path, "ext_thief", "square = ext_thief:Other", "circle = ext_thief:Circle", code="Circle = Square"
    )
    with installed(site), pytest.raises(FailedPreconditionError) as refused:
        registry().get("square")
    assert refused.value.message == (
        f"shape 'square': expected an entry point of {GROUP} in one package, got monolith-torch and ext_thief;"
        " uninstall one of them, or rename its entry point"
    )
    with installed(site):
        assert registry().get("circle") is Square


def test_two_packages_cannot_have_one_name(tmp_path: Path) -> None:
    sites = [package(tmp_path, name, f"star = {name}:Star") for name in ("ext_two", "ext_one")]
    with (
        installed(*sites),
        pytest.raises(FailedPreconditionError, match="in one package, got ext_one and ext_two; uninst"),
    ):
        registry().get("star")
