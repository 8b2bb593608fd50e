"""The rooms of the C++ core include each other in one direction only."""

from __future__ import annotations

import re
from pathlib import Path

CORE = Path(__file__).resolve().parent.parent / "core"

LAYERS = (
    ("base",),
    ("memory", "compressor", "initializer", "optimizer"),
    ("format",),
    ("filter", "data", "rpc"),
    ("table",),
    ("snapshot", "ps", "serving"),
)
"""From the bottom up. A room includes itself and what lies below; rooms of one layer do not know each other."""

_INCLUDE = re.compile(r'^#include "(?P<room>\w+)/', re.MULTILINE)
_TYPE = re.compile(
    r"^(?:struct|class|enum class)(?: alignas\(\w+\)| CAPABILITY\(\S+\)| SCOPED_CAPABILITY)? ([\w:]+)[^;(]*\{",
    re.MULTILINE,
)
_LEVELS = {room: level for level, layer in enumerate(LAYERS) for room in layer}


def forbidden(room: str, text: str) -> set[str]:
    """The rooms that a source text of `room` includes and may not."""
    included = {match["room"] for match in _INCLUDE.finditer(text)} - {room}
    return {other for other in included if other not in _LEVELS or _LEVELS[other] >= _LEVELS[room]}


def test_every_room_has_its_layer() -> None:
    assert {path.name for path in CORE.iterdir() if path.is_dir()} == set(_LEVELS)


def test_includes_go_down_only() -> None:
    found = {
        f"{path.relative_to(CORE)} includes {other}/"
        for path in CORE.rglob("*.*")
        if path.suffix in {".h", ".cc"}
        for other in forbidden(path.relative_to(CORE).parts[0], path.read_text())
    }
    assert found == set()


def test_an_include_that_goes_up_or_sideways_is_found() -> None:
    assert forbidden("format", '#include <table/x.h>\n#include "base/hash.h"\n#include "format/crc32c.h"\n') == set()
    assert forbidden("format", '#include "base/hash.h"\n#include "table/group.h"\n') == {"table"}
    assert forbidden("data", '#include "filter/admission_filter.h"\n') == {"filter"}
    assert forbidden("base", '#include "nowhere/x.h"\n') == {"nowhere"}


def named_twice(headers: dict[str, str]) -> set[str]:
    """Types that two headers define in one namespace: a program that has both is wrong, and no compiler says so."""
    places: dict[str, list[str]] = {}
    for path, text in headers.items():
        space = re.search(r"^namespace ([\w:]+) \{", text, re.MULTILINE)
        for match in _TYPE.finditer(text):
            places.setdefault(f"{space[1] if space else ''}::{match[1]}", []).append(path)
    return {f"{name}: {', '.join(sorted(paths))}" for name, paths in places.items() if len(paths) > 1}


def test_no_two_headers_name_their_types_alike() -> None:
    assert named_twice({str(path.relative_to(CORE)): path.read_text() for path in CORE.rglob("*.h")}) == set()


def test_types_that_are_named_alike_are_found() -> None:
    one, other = "namespace a {\nstruct X {\n};\nclass Y;\n}", "namespace a {\nclass X final {\n};\nstruct Y {\n};\n}"
    assert named_twice({"one.h": one, "other.h": other}) == {"a::X: one.h, other.h"}
    assert named_twice({"one.h": one, "other.h": other.replace("namespace a", "namespace b")}) == set()


def test_no_stream_of_the_standard_library_is_used() -> None:
    """The library carries its own libstdc++: its streams crash beside a torch that brings another one."""
    streams = re.compile(r"^#include <(fstream|iostream|sstream|iomanip|locale|regex|istream|ostream)>", re.MULTILINE)
    sources = [path for folder in (CORE, CORE.parent / "bindings") for path in folder.rglob("*.*")]
    found = [
        str(path.relative_to(CORE.parent))
        for path in sources
        if path.suffix in {".h", ".cc", ".cpp"} and not path.stem.endswith(("_test", "_for_test"))
        if streams.search(path.read_text())
    ]
    assert found == []
