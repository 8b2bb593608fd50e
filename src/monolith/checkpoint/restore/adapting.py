"""Adapts what was saved to the run it is restored into: renamed, reshaped, cleared or kept parts.

An alias map has the old name of each renamed weight, given or found by rule. Names are paths, with dots as torch writes
them or slashes as ByteDance Monolith did.
"""

from __future__ import annotations

import fnmatch
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from monolith.checkpoint.state_dicts import model_state, named_state
from monolith.checkpoint.train_state import WHOLE_MODEL, extra_state_of
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.nn.embeddings import saved_slots, without_slots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.checkpoint.options import AliasRule, RestoreConfig
    from monolith.checkpoint.restore.store_restore import RestoredRows
    from monolith.checkpoint.train_state import TrainState

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

Keeps: TypeAlias = Callable[[str], bool]
"""Whether the weight or store of this name has state of its own and keeps it."""


Lost: TypeAlias = Mapping[str, Sequence[int]]
"""Store -> its owners that have lost their rows, where others have not. Other stores have lost all, or nothing."""


def keep_nothing(_: str) -> bool:
    """Returns False: everything is restored."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which parts of a state are restored, and which keep their state."""

    keeps: Keeps = keep_nothing
    lost: Lost = field(default_factory=dict)
    lost_dense: Sequence[int] | None = None
    """Owners of dense weights of other processes that have lost theirs, where others have not; None: all, or none."""
    rows: Mapping[str, RestoredRows] | None = None
    """Targets of the tables, by name; None: the stores of the state."""
    ignore_unknown_tables: bool = False
    """Skip tables that only the checkpoint has, instead of raising."""

    @classmethod
    def of_owners(cls, lost: Lost, lost_dense: Sequence[int] | None) -> Parts:
        """Returns what some owners of rows and dense weights have lost.

        A module whose rows are partly ahead continues where it is; its steps are not set back.
        """
        states = {extra_state_of(name) for name in lost}
        complete = {name for name, owners in lost.items() if not owners}
        return cls(keeps=lambda name: name in states or name in complete, lost=lost, lost_dense=lost_dense)

    @property
    def is_whole(self) -> bool:
        """Whether everything is restored."""
        return self.keeps is keep_nothing and not self.lost and self.lost_dense is None

    def takes(self, store: str) -> bool:
        """Returns whether a store gets tables."""
        return store in self.lost or not self.keeps(store)


ALL_PARTS = Parts()


def adapt(saved: Mapping[str, Any], state: TrainState, options: RestoreConfig, keeps: Keeps) -> dict[str, Any]:
    """Returns the saved trees as the state can take them; the check that follows rejects what no option covers."""
    if state.model is None or saved["model"] is None:
        return dict(saved)
    own = model_state(state.model)
    weights, optimizers = dict(saved["model"]), dict(saved["optimizers"])
    aliases = _aliases(weights, own, options)
    if aliases is not None:
        shapes = {name: tuple(value.shape) for name, value in own.items() if isinstance(value, Tensor)}
        feeds = calc_feed_dict(weights, aliases, shapes)
        if feeds is not None:
            weights = {name: feeds.get(name, weights.get(name)) for name in own if name in feeds or name in weights}
            optimizers = {name: _renamed(values, aliases) for name, values in optimizers.items()}
    if options.reshape:
        tensors = {name: value for name, value in own.items() if isinstance(value, Tensor)}
        weights = {name: _reshaped(value, tensors.get(name)) for name, value in weights.items()}
        optimizers = {name: _reshaped_state(values, tensors) for name, values in optimizers.items()}
    slots = _saved_slots(weights, state)
    left_out = _left_out({*own, *weights, *slots}, options)
    for name in left_out & slots.keys():
        key, slot = slots[name]
        weights[key] = without_slots(weights[key], {slot})
    weights = {name: value for name, value in weights.items() if name not in left_out}
    weights |= {name: own[name] for name in left_out if name in own}
    optimizers = {name: _without(values, left_out) for name, values in optimizers.items()}
    for name in own:
        if keeps(name):
            weights[name] = own[name]
    optimizers = {name: _kept_state(name, values, state, keeps) for name, values in optimizers.items()}
    return {**saved, "model": weights, "optimizers": optimizers}


def _saved_slots(weights: Mapping[str, Any], state: TrainState) -> dict[str, tuple[str, str]]:
    """Returns the name of a slot, such as ``emb.user`` -> the key of its module's extra state, and the slot."""
    keys = {name: extra_state_of(name) for name in state.embeddings}
    return {
        slot if name == WHOLE_MODEL else f"{name}.{slot}": (key, slot)
        for name, key in keys.items()
        if key in weights
        for slot in saved_slots(weights[key])
    }


def _left_out(names: set[str], options: RestoreConfig) -> set[str]:
    """Returns the weights and slots that are not restored.

    Raises:
        InvalidArgumentError: an entry of `leave_out` names none.
    """
    matches = {pattern: fnmatch.filter(names, pattern) for pattern in options.leave_out}
    useless = [pattern for pattern, matched in matches.items() if not matched]
    if useless:
        raise InvalidArgumentError(
            f"restore: leave_out names {useless}, but neither the model nor the checkpoint has such a weight or slot;"
            f" they have {sorted(names)}"
        )
    return {name for matched in matches.values() for name in matched}


def _without(optimizer: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    state = {name: values for name, values in optimizer["state"].items() if name not in left_out}
    return {**optimizer, "state": state}


def _aliases(saved: Mapping[str, Any], own: Mapping[str, Any], options: RestoreConfig) -> Mapping[str, str] | None:
    if options.alias_map:
        return {name: options.alias_map.get(name, name) for name in own if name in options.alias_map or name in saved}
    if options.auto_alias and any(name not in saved for name in own):
        return generate_alias_map(own, saved, options.alias_rules)
    return None


def _renamed(optimizer: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Returns the state by new names. Parts of a split weight get none: the saved state has the rows of all parts."""
    uses = Counter(aliases.values())
    state = dict(optimizer["state"])
    renamed = {new: state[old] for new, old in aliases.items() if old in state and uses[old] == 1}
    return {**optimizer, "state": {**state, **renamed}}


def _reshaped(value: Any, own: Tensor | None) -> Any:
    if own is None or not isinstance(value, Tensor) or value.numel() != own.numel():
        return value
    return value.reshape(own.shape)


def _reshaped_state(optimizer: Mapping[str, Any], own: Mapping[str, Tensor]) -> dict[str, Any]:
    state = {
        name: {
            key: _reshaped(value, own.get(name)) if isinstance(value, Tensor) and value.ndim else value
            for key, value in values.items()
        }
        for name, values in optimizer["state"].items()
    }
    return {**optimizer, "state": state}


def _kept_state(name: str, saved: Mapping[str, Any], state: TrainState, keeps: Keeps) -> dict[str, Any]:
    if name not in state.optimizers:
        return dict(saved)
    own = named_state(state.optimizers[name], state.model)["state"]
    kept = {weight: values for weight, values in own.items() if keeps(weight)}
    return {**saved, "state": {**saved["state"], **kept}}


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
