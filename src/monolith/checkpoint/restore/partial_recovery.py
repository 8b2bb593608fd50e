"""Restores only what was lost: parts of a model that still have their state keep it.

A *device* is a part of the model that can be lost on its own: a parameter server, which has the rows of some buckets,
or the weights and tables below one of the model's modules. Surviving devices are ahead of the one that is reloaded;
that skew is accepted. Admission counts are restored on all servers, as in ByteDance Monolith.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from monolith.checkpoint.restore.adapting import ALL_PARTS, Parts
from monolith.checkpoint.state_dicts import model_state
from monolith.errors import InvalidArgumentError
from monolith.tables import RemoteRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from monolith.checkpoint.remote_dense import RemoteDense
    from monolith.checkpoint.train_state import TrainState
    from monolith.tables import RowOwners

EVERYWHERE_ELSE = ""
"""The device of everything below no module of the device map; always restored."""


class Servers(Protocol):
    """A group of parameter servers, such as `monolith.ps.PsCluster`."""

    @property
    def num_ps(self) -> int:
        """Number of servers."""


class PsMonitor:
    """Reports which devices have state.

    The state of a server ends with its process: a restarted server has none. The state of a module ends with the
    module: one that was built again has none.

    Args:
        devices: Parameter servers, or their number: they are ``/job:ps/task:0`` and so on. A number n stands for
            modules ``ps_0`` to ``ps_<n-1>`` of a model that has its tables in this process. Or name of a module -> its
            device.
    """

    def __init__(self, devices: Mapping[str, str] | int | Servers) -> None:
        self._num_ps: int | None = None
        if not isinstance(devices, Mapping):
            self._num_ps = devices if isinstance(devices, int) else devices.num_ps
            devices = {f"ps_{number}": _device(number) for number in range(self._num_ps)}
        self.devices = dict(devices)
        self._initialized: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def is_ps_uninitialized(self, state: TrainState, device: str) -> bool:
        """Returns whether this device has lost its state, or never had any."""
        named = [name for name, owner in self.devices.items() if owner == device]
        if not named:
            known = sorted(set(self.devices.values()))
            raise InvalidArgumentError(f"PsMonitor: unknown device {device!r}; there are {known}")
        lost = [owners.uninitialized() for owners in self._served(state)]
        if lost:
            return any(device == _device(number) for owners in lost for number in owners)
        return not all(self._module(state, name) in self._initialized for name in named)

    def has_lost(self, state: TrainState, name: str) -> bool:
        """Returns whether the weight or store of this name is on a device without state, or on none."""
        device = SaverBuilder(self.devices).device_of(name)
        return device == EVERYWHERE_ELSE or self.is_ps_uninitialized(state, device)

    def lost_owners(self, state: TrainState) -> dict[str, list[int]]:
        """Returns stores on servers of which some have state -> the servers without. Other stores are fully restored.

        As upstream does, a single server is restored whether it has state or not.
        """
        lost = {name: list(owners.uninitialized()) for name, owners in self.owners(state).items()}
        return {name: owners for name, owners in lost.items() if self._is_part(owners)}

    def lost_dense(self, state: TrainState) -> list[int] | None:
        """Like `lost_owners`, for dense weights on servers; None: all are restored, or they are in this process."""
        lost = [] if state.dense is None or self._num_ps is None else list(state.dense.uninitialized())
        return lost if state.dense is not None and self._is_part(lost) else None

    def lost_parts(self, state: TrainState) -> Parts:
        """Returns the parts to restore: those of devices without state."""
        if not self._served(state):
            builder = SaverBuilder(self.devices)
            alive = {device for device in set(self.devices.values()) if not self.is_ps_uninitialized(state, device)}
            return Parts(keeps=lambda name: builder.device_of(name) in alive)
        lost, lost_dense = self.lost_owners(state), self.lost_dense(state)
        if not lost and lost_dense is None:
            return ALL_PARTS
        return Parts.of_owners(lost, lost_dense)

    def setup_ps_initialized_state(self, state: TrainState) -> None:
        """Marks every device of this state as having state."""
        served = self._served(state)
        for owners in served:
            owners.set_initialized()
        for name in () if served else self.devices:
            self._initialized.add(self._module(state, name))

    def owners(self, state: TrainState) -> dict[str, RowOwners]:
        """Returns store -> the servers that have its rows; empty where devices are modules.

        Raises:
            InvalidArgumentError: the number of servers is not that of this monitor.
        """
        if self._num_ps is None:
            return {}
        served = {name: store.owners for name, store in state.stores.items() if isinstance(store, RemoteRows)}
        for name, owners in served.items():
            if len(owners.owned) != self._num_ps:
                raise InvalidArgumentError(
                    f"PsMonitor: made for {self._num_ps} servers, but store {name!r} is on {len(owners.owned)}; give it"
                    " the cluster of the store"
                )
        return served

    def _served(self, state: TrainState) -> list[RowOwners | RemoteDense]:
        dense = [] if state.dense is None or self._num_ps is None else [state.dense]
        return [*self.owners(state).values(), *dense]

    def _is_part(self, lost: Sequence[int]) -> bool:
        return self._num_ps not in {None, 1, len(lost)}

    def _module(self, state: TrainState, name: str) -> nn.Module:
        modules: dict[str, nn.Module] = {} if state.model is None else dict(state.model.named_modules())
        if name not in modules:
            raise InvalidArgumentError(
                f"PsMonitor: the model has no module {name!r}; it has {sorted(filter(None, modules))}"
            )
        return modules[name]


def _device(number: int) -> str:
    return f"/job:ps/task:{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOps:
    """The weights and stores to restore for one device."""

    weights: tuple[str, ...]
    stores: tuple[str, ...]


class SaverBuilder:
    """Groups what is restored by device.

    Args:
        devices: Name of a module -> its device.
    """

    def __init__(self, devices: Mapping[str, str]) -> None:
        self._devices = dict(devices)
        self._ops: dict[str, RestoreOps] = {}

    @property
    def restore_ops_per_device(self) -> dict[str, RestoreOps]:
        """Device -> what is restored there, after `build`."""
        return dict(self._ops)

    def build(self, state: TrainState) -> SaverBuilder:
        """Groups the names of a state."""
        weights: dict[str, list[str]] = defaultdict(list)
        stores: dict[str, list[str]] = defaultdict(list)
        for name in () if state.model is None else model_state(state.model):
            weights[self.device_of(name)].append(name)
        for name in state.stores:
            stores[self.device_of(name)].append(name)
        self._ops = {
            device: RestoreOps(weights=tuple(weights[device]), stores=tuple(stores[device]))
            for device in sorted({*weights, *stores})
        }
        return self

    def device_of(self, name: str) -> str:
        """Returns the device of a weight or store: that of the longest module name that it is below."""
        owners = [module for module in self._devices if name == module or name.startswith(f"{module}.")]
        return self._devices[max(owners, key=len)] if owners else EVERYWHERE_ELSE
