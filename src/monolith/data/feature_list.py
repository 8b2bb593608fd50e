"""``feature_list.conf``: which features there are, their slots and the layout of their ids.

The file is written for the service that extracts features; training needs name, slot and layout out of it, and all
other keys are kept as they are. Lines are

    column_name: a, b, c
    feed_name=a; shared=true; feature_id=7
    cache_column: a, b            or   cache_name=x; capacity=100; timeout=60
    feature_name=fc_user; depend=a,b; method=Hash; slot=5; feature_version=2

with ``#`` before comments, and keys separated by ``;`` or by ``,`` and spaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import fsspec

from monolith.errors import InvalidArgumentError
from monolith.ids import NUM_SLOTS_V1, NUM_SLOTS_V2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

_TRUE = frozenset({"true", "yes", "t", "y", "1"})
_KINDS = {"feature_name": "features", "feed_name": "feeds", "cache_name": "caches", "cache_key_class": "caches"}
_KEY = re.compile(r"(?:^|[;,\s])\s*([A-Za-z_]\w*)\s*=")
_PREFIXES = ("", "f_", "fc_")


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of the file."""

    name: str
    slot: int | None = None
    version: int = 1
    """Layout of its ids: 1 or 2."""
    is_shared: bool = False
    depends: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """All keys of the line, as they stand."""


@dataclass(frozen=True, slots=True)
class FeatureList:
    """Content of a feature list file.

    >>> features = FeatureList.parse("feature_name=fc_user; depend=uid; method=Hash; slot=5; feature_version=2")
    >>> features["user"].slot, features[5].name
    (5, 'fc_user')
    """

    features: Mapping[str, Feature]
    columns: tuple[str, ...] = ()
    """Raw columns."""
    cache_columns: tuple[str, ...] = ()
    feeds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Raw column feeds by name."""
    caches: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> Self:
        """Reads a file, at any fsspec path."""
        with fsspec.open(path, "r", encoding="utf-8") as file:
            return cls.parse(file.read(), origin=path)

    @classmethod
    def parse(cls, text: str, *, origin: str = "feature list") -> Self:
        """Parses the text of a file.

        Raises:
            InvalidArgumentError: an unknown kind of line, a duplicate name or slot, or an invalid slot or version;
                names the line.
        """
        columns: dict[str, None] = {}
        cache_columns: dict[str, None] = {}
        entries: dict[str, dict[str, dict[str, str]]] = {"features": {}, "feeds": {}, "caches": {}}
        for number, line in enumerate(text.splitlines(), start=1):
            line = line.split("#", 1)[0].strip()  # noqa: PLW2901 - what is left of it
            place = f"{origin}, line {number}"
            listed = re.match(r"(column_name|cache_column)\s*:(.*)$", line)
            if listed:
                target = columns if listed[1] == "column_name" else cache_columns
                target.update(dict.fromkeys(re.findall(r"[^\s,;]+", listed[2])))
            elif line:
                kind, name, options = _entry(line, place)
                if name in entries[kind]:
                    raise InvalidArgumentError(f"{place}: {name!r} is listed twice")
                entries[kind][name] = options
        features = {name: _feature(name, options, origin) for name, options in entries["features"].items()}
        _check_slots(features.values(), origin)
        return cls(features, tuple(columns), tuple(cache_columns), entries["feeds"], entries["caches"])

    def find(self, name: str | int) -> Feature | None:
        """Returns the feature of this name or slot, or None.

        A name matches unchanged, with the prefix ``f_`` or ``fc_``, and, if it is a cross ``a-b``, with either prefix
        before each part.
        """
        if isinstance(name, int):
            return next((feature for feature in self.features.values() if feature.slot == name), None)
        for prefix in _PREFIXES:
            joined = "-".join(prefix + part for part in name.split("-"))
            for candidate in (prefix + name, joined):
                if candidate in self.features:
                    return self.features[candidate]
        if name.isdecimal():
            return self.find(int(name))
        return None

    def __getitem__(self, name: str | int) -> Feature:
        feature = self.find(name)
        if feature is None:
            known = ", ".join(list(self.features)[:10]) or "none"
            raise KeyError(f"feature list has no feature {name!r}; it has {known}")
        return feature

    def __contains__(self, name: str | int) -> bool:
        return self.find(name) is not None

    def slots(self) -> dict[str, int]:
        """Returns name -> slot, of the features that have one."""
        return {name: feature.slot for name, feature in self.features.items() if feature.slot is not None}


def _entry(line: str, place: str) -> tuple[str, str, dict[str, str]]:
    """Parses a line of ``key=value`` into kind, name and keys."""
    keys = list(_KEY.finditer(line))
    ends = [*(key.start() for key in keys), len(line)][1:]
    options = {key[1]: line[key.end() : end].strip(" \t;,") for key, end in zip(keys, ends, strict=False)}
    for key, kind in _KINDS.items():
        if keys and key in options and keys[0].start() == 0:
            if not options[key]:
                raise InvalidArgumentError(f"{place}: {key} is empty")
            return kind, options[key], options
    raise InvalidArgumentError(
        f"{place}: expected column_name:, cache_column:, or keys with one of {', '.join(_KINDS)}, got {line[:80]!r}"
    )


def _feature(name: str, options: Mapping[str, str], origin: str) -> Feature:
    slot = options.get("slot", "")
    version = options.get("feature_version", "1") or "1"
    if slot and not slot.isdecimal():
        raise InvalidArgumentError(f"{origin}: slot of {name!r} must be an integer >= 0, got {slot!r}")
    if version not in {"1", "2"}:
        raise InvalidArgumentError(f"{origin}: feature_version of {name!r} must be 1 or 2, got {version!r}")
    return Feature(
        name=name,
        slot=int(slot) if slot else None,
        version=int(version),
        is_shared=options.get("shared", "").lower() in _TRUE,
        depends=tuple(part.strip() for part in options.get("depend", "").split(",") if part.strip()),
        options=dict(options),
    )


def _check_slots(features: Iterable[Feature], origin: str) -> None:
    by_slot: dict[int, str] = {}
    for feature in features:
        if feature.slot is None:
            continue
        limit = NUM_SLOTS_V1 if feature.version == 1 else NUM_SLOTS_V2
        if feature.slot >= limit:
            expected = f"below {limit} in layout {feature.version}"
            raise InvalidArgumentError(f"{origin}: slot of {feature.name!r} must be {expected}, got {feature.slot}")
        if feature.slot in by_slot:
            names = f"{by_slot[feature.slot]!r} and {feature.name!r}"
            raise InvalidArgumentError(f"{origin}: {names} have one slot, {feature.slot}")
        by_slot[feature.slot] = feature.name
