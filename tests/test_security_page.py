"""What `docs/security.md` says in numbers is what the code does, and what it names is there."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def limits() -> list[tuple[str, str, str]]:
    """What, number and place of every row of the table of limits."""
    table = PAGE.split("\n## Limits\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| `(.+?)` \|$", table, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\|", table, re.MULTILINE)) - 2, "every row has three columns"
    return rows


def number_of(text: str) -> float:
    """The number that a text such as 64 MiB, 2^31 - 1 or 3,600 means."""
    if power := re.fullmatch(r"2\^(\d+)( - 1)?", text):
        return (1 << int(power[1])) - (1 if power[2] else 0)
    plain = re.fullmatch(r"([\d,.]+) ?(\w*)", text)
    assert plain is not None, text
    return float(plain[1].replace(",", "")) * UNITS[plain[2]]


def constant_of_core(path: str, name: str) -> int:
    """The value of ``constexpr ... name = ...;`` in a source of the core."""
    source = (ROOT / path).read_text(encoding="utf-8")
    found = re.search(rf"constexpr \w+ {name} = (.+?);", source)
    assert found is not None, f"{path} has no constant {name}"
    text = re.sub(r"\w+\{(\d+)\}", r"\1", found[1]).replace("'", "")
    shift = re.fullmatch(r"(\d+)u? << (\d+)", text)
    return int(shift[1]) << int(shift[2]) if shift else int(text)


def constant_of_package(dotted: str) -> Any:
    """A value of a module, or the default of a field of a config."""
    parts = dotted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:-1]:
            owner = getattr(owner, name)
        if dataclasses.is_dataclass(owner):
            return {field.name: field.default for field in dataclasses.fields(owner)}[parts[-1]]
        return getattr(owner, parts[-1])
    raise AssertionError(f"nothing is called {dotted}")


@pytest.mark.parametrize(("what", "number", "place"), limits())
def test_a_limit_of_the_page_is_that_of_the_code(what: str, number: str, place: str) -> None:
    path, colon, name = place.partition(": ")
    found = constant_of_core(path, name) if colon else constant_of_package(place)
    assert found == number_of(number), what


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:core|docs|scripts|tests)/[\w/.-]+)[`:]", PAGE))))
def test_what_the_page_names_exists(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("command", re.findall(r"^\$ .venv/bin/python (\S+)", PAGE, re.MULTILINE))
def test_the_scripts_of_the_page_exist(command: str) -> None:
    assert (ROOT / command).is_file()


def test_numbers_are_read_as_they_are_meant() -> None:
    assert [number_of(text) for text in ("64 MiB", "2^31 - 1", "3,600", "16")] == [64 << 20, (1 << 31) - 1, 3600, 16]


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_the_page_is_found_from_the_first_pages(page: str) -> None:
    assert re.search(r"\]\((docs/)?security\.md\)", (ROOT / page).read_text(encoding="utf-8"))
