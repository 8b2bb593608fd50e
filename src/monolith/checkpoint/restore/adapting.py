"""Adapts what was saved to the run it is restored into: renamed, reshaped, cleared or kept parts."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from monolith.checkpoint.restore.aliases import calc_feed_dict, generate_alias_map
from monolith.checkpoint.state_dicts import model_state, named_state
from monolith.checkpoint.train_state import WHOLE_MODEL, extra_state_of
from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings import saved_slots, without_slots

if TYPE_CHECKING:
    from monolith.checkpoint.options import RestoreConfig
    from monolith.checkpoint.restore.store_restore import RestoredRows
    from monolith.checkpoint.train_state import TrainState

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
            key: _reshaped(value, own.get(name)) if _is_like_weight(value) else value for key, value in values.items()
        }
        for name, values in optimizer["state"].items()
    }
    return {**optimizer, "state": state}


def _is_like_weight(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _kept_state(name: str, saved: Mapping[str, Any], state: TrainState, keeps: Keeps) -> dict[str, Any]:
    if name not in state.optimizers:
        return dict(saved)
    own = named_state(state.optimizers[name], state.model)["state"]
    kept = {weight: values for weight, values in own.items() if keeps(weight)}
    return {**saved, "state": {**saved["state"], **kept}}
