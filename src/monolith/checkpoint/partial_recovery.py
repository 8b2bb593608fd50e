"""Restores only what was lost: parts of a model that still have their state keep it.

A *device* is a part of the model with a life of its own, such as a parameter server: the weights and tables below one
of its modules. Surviving devices are ahead of the one that is reloaded; that skew is accepted.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from monolith.checkpoint.model_state import model_state
from monolith.checkpoint.saver import Saver
from monolith.checkpoint.saver_options import SaverOptions
from monolith.checkpoint.state_files import get_monolith_checkpoint_state
from monolith.config import config, keywords_of
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from monolith.checkpoint._adapting import Keeps
    from monolith.checkpoint._folder import FolderPath
    from monolith.checkpoint.train_state import TrainState

EVERYWHERE_ELSE = ""
"""The device of what is below no module of the device map; always restored."""


class PsMonitor:
    """Remembers which devices have state. The mark is with the module: one that was built anew has none.

    Args:
        devices: Name of a module -> its device. A number n stands for modules ``ps_0`` to ``ps_<n-1>`` on
            ``/job:ps/task:0`` and so on.
    """

    def __init__(self, devices: Mapping[str, str] | int) -> None:
        if isinstance(devices, int):
            devices = {f"ps_{number}": f"/job:ps/task:{number}" for number in range(devices)}
        self.devices = dict(devices)
        self._initialized: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def is_ps_uninitialized(self, state: TrainState, device: str) -> bool:
        """Whether this device has lost its state, or never had any."""
        modules = [self._module(state, name) for name, each in self.devices.items() if each == device]
        if not modules:
            known = sorted(set(self.devices.values()))
            raise InvalidArgumentError(f"PsMonitor: unknown device {device!r}; there are {known}")
        return not all(module in self._initialized for module in modules)

    def has_lost(self, state: TrainState, name: str) -> bool:
        """Whether the weight or store of this name is on a device without state, or on none."""
        device = SaverBuilder(self.devices).device_of(name)
        return device == EVERYWHERE_ELSE or self.is_ps_uninitialized(state, device)

    def setup_ps_initialized_state(self, state: TrainState) -> None:
        """Every device of this state has state from now on."""
        for name in self.devices:
            self._initialized.add(self._module(state, name))

    def _module(self, state: TrainState, name: str) -> nn.Module:
        modules: dict[str, nn.Module] = {} if state.model is None else dict(state.model.named_modules())
        if name not in modules:
            raise InvalidArgumentError(
                f"PsMonitor: the model has no module {name!r}; it has {sorted(filter(None, modules))}"
            )
        return modules[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOps:
    """What is restored for one device."""

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
        """Looks at the names of a state."""
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
        """The device of a weight or store: that of the longest module name that it is below."""
        owners = [module for module in self._devices if name == module or name.startswith(f"{module}.")]
        return self._devices[max(owners, key=len)] if owners else EVERYWHERE_ELSE


@config
class PartialRecoveryOptions(SaverOptions):
    """Keyword arguments of `PartialRecoverySaver`."""

    ps_monitor: PsMonitor | None = None
    """Knows which devices have no state; None restores everything, as a plain `Saver` does."""

    def of_saver(self) -> dict[str, Any]:
        """Those that a plain `Saver` has, too."""
        return {each.name: getattr(self, each.name) for each in fields(SaverOptions)}


class PartialRecoverySaver(Saver):
    """A saver that restores only the devices that have no state.

    Args:
        model_dir: The model directory.
        options: The fields of `PartialRecoveryOptions`, by name.
    """

    @keywords_of(PartialRecoveryOptions)
    def __init__(self, model_dir: FolderPath, options: PartialRecoveryOptions) -> None:
        super().__init__(model_dir, **options.of_saver())
        self._ps_monitor = options.ps_monitor

    @property
    def exempt_checkpoint_paths(self) -> list[str]:
        """Checkpoints that retention neither counts nor deletes, as `monolith_checkpoint` lists them now."""
        state = get_monolith_checkpoint_state(self.model_dir, remove_invalid_path=True)
        return [] if state is None else list(state.exempt_model_checkpoint_paths)

    def setup_ps_initialized_state(self, state: TrainState) -> None:
        """Every device of this state has state from now on: it was restored, or made."""
        if self._ps_monitor is not None:
            self._ps_monitor.setup_ps_initialized_state(state)

    def _keeps(self, state: TrainState) -> Keeps:
        monitor = self._ps_monitor
        if monitor is None:
            return super()._keeps(state)
        builder = SaverBuilder(monitor.devices)
        alive = {device for device in set(monitor.devices.values()) if not monitor.is_ps_uninitialized(state, device)}
        return lambda name: builder.device_of(name) in alive
