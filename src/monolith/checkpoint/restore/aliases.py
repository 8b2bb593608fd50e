"""Weights under new names: which old name each one has, given or found by rule.

Names are paths, with dots as torch writes them or slashes as ByteDance Monolith did.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from monolith.errors import FailedPreconditionError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from monolith.checkpoint.options import AliasRule

logger = logging.getLogger(__name__)

CUSTOM_RESTORE_OP = "custom_restore_op"
"""Name of the collection in which a task leaves an alias map for its session's restore."""

BUILT_IN_RULES: tuple[AliasRule, ...] = (
    (r"(^|[./])c_dot([./])mlp", r"\1c_dot\2compress_tower"),
    (r"(^|[./])dcn[./]((kernel|bias|trainable_kernel_norm)_\d+)", r"\1\2"),
)
"""Renamings of layers in upstream's own history."""

_PART = re.compile(r"[./]part_(\d+)")
_DENSE = re.compile(
    r"(?P<prefix>.*?)(?P<separator>[./])(?P<layer>[^./]*?)_?(?P<number>\d*)[./]"
    r"(?P<kind>bias|kernel|weight|trainable_kernel_norm)(?P<suffix>.*)"
)


def calc_feed_dict(
    saved: Mapping[str, Any], alias_map: Mapping[str, str], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Any] | None:
    """Returns the value of each aliased weight.

    Args:
        saved: Name -> value in the checkpoint.
        alias_map: Name now -> name in the checkpoint.
        shapes: Name now -> shape, of every weight in the map.

    Returns:
        Name now -> value; None if every name now, without its part, is in the checkpoint: then nothing is aliased.

    Raises:
        NotFoundError: an old name that the checkpoint does not have.
        FailedPreconditionError: parts whose rows do not add up to those of the old weight.
    """
    if all(_PART.sub("", name) in saved for name in alias_map):
        return None
    parts: dict[str, list[str]] = defaultdict(list)
    for name, old in alias_map.items():
        if old not in saved:
            raise NotFoundError(f"alias {name!r}: the checkpoint has no {old!r}; it has {sorted(saved)}")
        parts[old].append(name)
    feeds: dict[str, Any] = {}
    for old, names in parts.items():
        feeds |= {names[0]: saved[old]} if len(names) == 1 else _split(saved[old], old, names, shapes)
    return feeds


def _split(value: Tensor, old: str, names: Sequence[str], shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    ordered = sorted(names, key=_part_number)
    rows = [shapes[name][0] for name in ordered]
    if sum(rows) != value.shape[0]:
        raise FailedPreconditionError(
            f"alias: {ordered} have {rows} rows, {sum(rows)} in all, but {old!r} of the checkpoint has {value.shape[0]}"
        )
    return dict(zip(ordered, torch.split(value, rows), strict=True))


def _part_number(name: str) -> int:
    match = _PART.search(name)
    return int(match[1]) if match else 0


def generate_alias_map(
    wanted: Iterable[str], saved: Iterable[str], rules: Sequence[AliasRule] = ()
) -> dict[str, str] | None:
    """Returns old names for the wanted ones that the checkpoint does not have.

    Returns:
        Name now -> name in the checkpoint, for every wanted name; None, with a warning, if one cannot be found.

    >>> generate_alias_map(["tower.dense_2.bias", "tower.dense_3.bias"], ["tower.dense.bias", "tower.dense_1.bias"])
    {'tower.dense_2.bias': 'tower.dense.bias', 'tower.dense_3.bias': 'tower.dense_1.bias'}
    """
    wanted, saved = list(wanted), list(saved)
    old_names, all_rules = _OldNames(saved), [*BUILT_IN_RULES, *rules]
    plain = [_PART.sub("", name) for name in wanted]
    own_layers = _DenseLayers(plain)
    # One missing layer means that all of its siblings were numbered otherwise.
    moved = {own_layers.group(name) for name in plain if name not in old_names.by_name} - {None}
    old_by_name: dict[str, str] = {}
    for name, spelling in zip(wanted, plain, strict=True):
        if own_layers.group(spelling) in moved:
            old = old_names.by_place.get(own_layers.renumbered(spelling) or "")
        else:
            old = old_names.by_name.get(spelling)
        old = old or old_names.by_rule(spelling, all_rules)
        if old is None:
            logger.warning("restore: the checkpoint has no weight for %r, and no rule leads to one", name)
            return None
        old_by_name[name] = old
    return old_by_name


class _OldNames:
    """Every spelling under which a saved weight can be found; an ambiguous spelling finds none."""

    def __init__(self, saved: Sequence[str]) -> None:
        layers = _DenseLayers(saved)
        own = {name: name for name in saved}
        self.by_name = {**_distinct((_without_repeats(name), name) for name in saved), **own}
        """Name, or name without repeated components -> name."""
        self.by_place = _distinct(
            (renumbered, name) for name in saved if (renumbered := layers.renumbered(name)) is not None
        )
        """Name with the place of a dense layer among its siblings -> name."""

    def by_rule(self, current: str, rules: Sequence[AliasRule]) -> str | None:
        """Returns the weight that a rule maps the current name to, or to the current name."""
        for pattern, new in rules:
            if (old := self.by_name.get(re.sub(pattern, new, current))) is not None:
                return old
            for spelling, name in self.by_name.items():
                if re.sub(pattern, new, spelling) == current:
                    return name
        return None


def _distinct(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    names: dict[str, set[str]] = defaultdict(set)
    for spelling, name in pairs:
        names[spelling].add(name)
    return {spelling: candidates.pop() for spelling, candidates in names.items() if len(candidates) == 1}


class _DenseLayers:
    """The numbers of dense layers below each prefix that has a bias, which restart from 0 in every program."""

    def __init__(self, names: Iterable[str]) -> None:
        self._numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
        for name in names:
            match = _DENSE.fullmatch(name)
            if match is not None and match["kind"] == "bias":
                self._numbers[match["prefix"], match["layer"]].add(int(match["number"] or 0))

    def group(self, name: str) -> tuple[str, str] | None:
        """Returns prefix and kind of a weight's layer; None if the layer has no number."""
        match = _DENSE.fullmatch(name)
        key = None if match is None else (match["prefix"], match["layer"])
        return key if key in self._numbers else None

    def renumbered(self, name: str) -> str | None:
        """Returns the name with its layer's place among its siblings instead of its number."""
        match = _DENSE.fullmatch(name)
        if match is None or (match["prefix"], match["layer"]) not in self._numbers:
            return None
        numbers = self._numbers[match["prefix"], match["layer"]]
        number = int(match["number"] or 0)
        if number not in numbers:
            return None
        place = sorted(numbers).index(number)
        separator = match["separator"]
        layer = f"{match['layer']}_{place}" if match["layer"] else str(place)
        return separator.join([match["prefix"], layer, f"{match['kind']}{match['suffix']}"])


def _without_repeats(name: str) -> str:
    """Returns the name without repeated components: ``a.b.b.c`` becomes ``a.b.c``."""
    parts = re.split(r"([./])", name)
    kept = parts[:1]
    for separator, part in zip(parts[1::2], parts[2::2], strict=True):
        if part != kept[-1]:
            kept += [separator, part]
    return "".join(kept)
