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
    ("device",),
)
"""From the bottom up. A room includes itself and what lies below; rooms of one layer do not know each other."""

STANDARD_HEADERS_OF_RULES = {"algorithm", "bit", "cfloat", "cmath", "cstddef", "cstdint", "cstring", "limits"}
"""Those that a compiler of GPU kernels is given; it also compiles every `*_rule.h` of the core."""

_INCLUDE = re.compile(r'^#include "(?P<room>\w+)/', re.MULTILINE)
_ANY_INCLUDE = re.compile(r'^#include [<"](?P<name>[^>"]+)[>"]', re.MULTILINE)
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


def beyond_rules(headers: dict[str, str]) -> set[str]:
    """What rules include, directly or not, and may not."""
    found = set()
    reached = {path for path in headers if path.endswith("_rule.h")}
    unread = sorted(reached)
    while unread:
        path = unread.pop()
        for name in _ANY_INCLUDE.findall(headers[path]):
            if name not in headers and name not in STANDARD_HEADERS_OF_RULES:
                found.add(f"{path} includes {name}")
            elif name in headers and name not in reached:
                reached.add(name)
                unread.append(name)
    return found


def test_rules_reach_only_headers_that_device_compilers_have() -> None:
    headers = {str(path.relative_to(CORE)): path.read_text() for path in CORE.rglob("*.h")}
    assert len([path for path in headers if path.endswith("_rule.h")]) > 10
    assert beyond_rules(headers) == set()


def test_what_a_rule_reaches_through_another_header_is_found() -> None:
    headers = {"a/x_rule.h": '#include <cmath>\n#include "a/math.h"\n', "a/other.h": "#include <mutex>\n"}
    assert beyond_rules({**headers, "a/math.h": "#include <bit>\n"}) == set()
    assert beyond_rules({**headers, "a/math.h": "#include <string>\n"}) == {"a/math.h includes string"}
    assert beyond_rules({**headers, "a/math.h": '#include "a/other.h"\n'}) == {"a/other.h includes mutex"}
    assert beyond_rules({**headers, "a/math.h": "#include <math.h>\n"}) == {"a/math.h includes math.h"}


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
