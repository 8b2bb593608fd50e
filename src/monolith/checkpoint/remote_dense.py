"""Dense weights that live in other processes: frozen in a cut, gathered into the checkpoint later, restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from monolith.checkpoint.state_dicts import named_state
from monolith.checkpoint.value_tree import TreeEncoder
from monolith.errors import FailedPreconditionError
from monolith.tables import BatchStamp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from monolith.checkpoint.train_state import TrainState

OWNERS = "owners"
"""Key of the per-owner parts of a state whose owners differ by a batch; absent in other states."""
NOT_A_WEIGHT = "@"
"""Prefix of names of tensors that are not the model's; those of the model are as in its state dictionary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseState:
    """Dense weights and their training progress, in the form of one process, whatever the number of their owners."""

    weights: Mapping[str, Tensor]
    """Complete weights, by name."""
    optimizers: Mapping[str, Mapping[str, Any]]
    """By name: ``state``, by name of the weight, and ``groups``, what the rule keeps in each of its groups."""
    clocks: Sequence[Mapping[int, BatchStamp]]
    """Of each owner: worker -> its last batch. They differ only where a worker died between two owners."""
    apart: Sequence[Mapping[str, Any]] = ()
    """Of each owner, only where their clocks differ: the parts of `optimizers` that cannot be put together then."""

    @property
    def applied(self) -> dict[int, BatchStamp]:
        """Worker -> its last batch that every owner has."""
        workers = set.intersection(*(set(clock) for clock in self.clocks)) if self.clocks else set()
        return {
            worker: min((clock[worker] for clock in self.clocks), key=lambda stamp: stamp.seq) for worker in workers
        }

    @property
    def is_level(self) -> bool:
        """Whether all owners have the same batches."""
        return all(clock == self.clocks[0] for clock in self.clocks)


class FrozenDense(Protocol):
    """A consistent copy of the dense weights."""

    def gather(self) -> DenseState:
        """Gathers the weights while training continues; owners release their copies. Any thread may call it once."""

    def release(self) -> None:
        """Lets the owners release their copies. Idempotent."""


class RemoteDense(Protocol):
    """The dense weights of a run that owners in other processes keep."""

    @property
    def steps_of_others(self) -> int:
        """Batches of all other workers, as last reported by the first owner; -1: not reported yet."""

    @property
    def names(self) -> Collection[str]:
        """Names of the weights."""

    def group_keys(self, optimizer: str) -> Collection[str]:
        """Returns the keys that an optimizer's rule keeps in its groups."""

    def held(self) -> AbstractContextManager[None]:
        """Holds back all pushes inside the context; all owners have the same batches."""

    def freeze(self) -> FrozenDense:
        """Makes every owner copy its weights."""

    def scatter(self, state: DenseState, servers: Sequence[int] | None = None) -> None:
        """Sends every owner, or some of them, its part of a state; workers have to join again."""

    def uninitialized(self) -> Sequence[int]:
        """Returns the owners without state: `set_initialized` was not called since they started."""

    def set_initialized(self) -> None:
        """Marks all owners as having state, for as long as they run."""


@dataclass(frozen=True, slots=True)
class DenseCut:
    """Dense weights that were frozen at their owners."""

    frozen: FrozenDense
    names: Mapping[str, str]
    """Name in the model's state -> the weight; a shared weight has several."""

    def put_into(self, trees: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> DenseParts:
        """Gathers the weights and returns trees and tensors as one process would have them."""
        dense, encoder = self.frozen.gather(), TreeEncoder()
        model = {
            **trees["model"],
            **{name: encoder.encode(dense.weights[own], own) for name, own in self.names.items()},
        }
        optimizers = {}
        for name, tree in trees["optimizers"].items():
            saved = dense.optimizers[name]
            state = encoder.encode(saved["state"], f"{NOT_A_WEIGHT}optimizers/{name}/state")
            groups = [
                {**group, **encoder.encode(kept, name)}
                for group, kept in zip(tree["param_groups"], saved["groups"], strict=True)
            ]
            optimizers[name] = {**tree, "state": state, "param_groups": groups}
        whole: dict[str, Any] = {**trees, "model": model, "optimizers": optimizers}
        if not dense.is_level:
            whole[OWNERS] = encoder.encode(_owners(dense), f"{NOT_A_WEIGHT}{OWNERS}")
        return DenseParts(trees=whole, tensors={**tensors, **encoder.tensors}, applied=dense.applied)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseParts:
    """A cut with its dense weights."""

    trees: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    applied: Mapping[int, BatchStamp]


def remote_names(state: TrainState) -> dict[str, str]:
    """Returns name in the model's state -> weight, for all weights of other processes."""
    if state.dense is None or state.model is None:
        return {}
    known = {id(value): name for name, value in state.model.named_parameters()}
    named = state.model.named_parameters(remove_duplicate=False)
    return {name: known[id(value)] for name, value in named if known[id(value)] in state.dense.names}


def scatter_saved(
    saved: Mapping[str, Any],
    state: TrainState,
    applied: Mapping[int, BatchStamp],
    owners_without: Sequence[int] | None = None,
) -> None:
    """Sends the owners of the dense weights their parts of the saved state; or only the owners without state.

    Raises:
        FailedPreconditionError: the saved owners differed by a batch, and the number of owners has changed.
    """
    if state.dense is None:
        return
    owners = saved.get(OWNERS)
    weights = {name: saved["model"][name] for name in state.dense.names}
    optimizers = {
        name: {
            "state": {
                weight: slots for weight, slots in saved["optimizers"][name]["state"].items() if weight in weights
            },
            "groups": [
                {key: group[key] for key in state.dense.group_keys(name) if key in group}
                for group in saved["optimizers"][name]["param_groups"]
            ],
        }
        for name in state.optimizers
    }
    clocks = [applied] if owners is None else [_stamps(clock) for clock in owners["clocks"]]
    apart = () if owners is None else tuple(owners["apart"])
    merged = DenseState(weights=weights, optimizers=optimizers, clocks=clocks, apart=apart)
    state.dense.scatter(merged, owners_without)


def scatter_own(state: TrainState, applied: Mapping[int, BatchStamp]) -> None:
    """Sends the owners of the dense weights those of this process, which are untrained."""
    if state.dense is None or state.model is None:
        return
    parameters = {name: parameter for name, parameter in state.model.named_parameters() if name in state.dense.names}
    state.dense.scatter(
        dense_state_of(parameters, state.optimizers, group_keys=state.dense.group_keys, clocks=[applied])
    )


def dense_state_of(
    parameters: Mapping[str, nn.Parameter],
    optimizers: Mapping[str, Optimizer],
    *,
    group_keys: Callable[[str], Collection[str]],
    clocks: Sequence[Mapping[int, BatchStamp]],
) -> DenseState:
    """Returns weights and optimizer state of this process as their owners take them; see `RemoteDense.group_keys`."""
    states = {
        name: {
            "state": {
                weight: dict(optimizer.state[parameter])
                for weight, parameter in parameters.items()
                if parameter in optimizer.state
            },
            "groups": [{key: group[key] for key in group_keys(name)} for group in optimizer.param_groups],
        }
        for name, optimizer in optimizers.items()
    }
    weights = {name: parameter.detach() for name, parameter in parameters.items()}
    return DenseState(weights=weights, optimizers=states, clocks=clocks)


def require_level(saved: Mapping[str, Any]) -> None:
    """Rejects a state whose owners differ by a batch where no owners take it."""
    if OWNERS in saved:
        count = len(saved[OWNERS]["clocks"])
        raise FailedPreconditionError(
            f"restore: when this checkpoint was made, a worker had died between two of {count} servers, so that their"
            f" weights differ by a batch; restore it into {count} servers, or take another checkpoint"
        )


def bring_here(state: TrainState) -> None:
    """Copies the owners' state into model and optimizers of this process, for parts that are not restored."""
    if state.dense is None or state.model is None:
        return
    dense = state.dense.freeze().gather()
    parameters = dict(state.model.named_parameters())
    for name, value in dense.weights.items():
        parameters[name].data.copy_(value)
    for name, optimizer in state.optimizers.items():
        for weight, values in dense.optimizers[name]["state"].items():
            optimizer.state[parameters[weight]] = dict(values)


def local_optimizer_tree(state: TrainState, name: str, encoder: TreeEncoder) -> Any:
    """Returns this process's part of an optimizer; where the weights are in other processes, its groups alone."""
    saved = named_state(state.optimizers[name], state.model)
    if state.dense is not None:
        saved = {**saved, "state": {}}
    return encoder.encode(saved, f"{NOT_A_WEIGHT}optimizers/{name}")


def _owners(dense: DenseState) -> dict[str, Any]:
    clocks = [
        [[stamp.worker, stamp.seq, stamp.position, stamp.event_time_ms] for stamp in clock.values()]
        for clock in dense.clocks
    ]
    return {"clocks": clocks, "apart": [dict(part) for part in dense.apart]}


def _stamps(clock: list[list[Any]]) -> dict[int, BatchStamp]:
    return {
        worker: BatchStamp(worker=worker, seq=seq, position=position, event_time_ms=event_time_ms)
        for worker, seq, position, event_time_ms in clock
    }
