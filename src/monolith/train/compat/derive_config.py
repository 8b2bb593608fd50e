"""Conversion of flat options to the frozen, nested configs that all other code uses: applies the tables."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from monolith.train.compat.effects import Makes, Sets, effects_of
from monolith.train.compat.refusal import require_effective
from monolith.train.compat.task_parameters import PARAMETERS
from monolith.train.config.trainer_config import TrainerConfig
from monolith.train.device_placement import with_gpu_tables
from monolith.train.parameters.params import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.train.compat.options import CpuTrainingConfig


def trainer_config_of(options: CpuTrainingConfig, params: Params | None = None) -> TrainerConfig:
    """Returns the trainer's config for these options, and freezes them.

    Args:
        options: Flat options of any of the three classes.
        params: Parameters of the task; they supply save intervals that the options do not set.

    Raises:
        ValueError: an option that does nothing here, or that contradicts another one.
    """
    require_effective(options)
    if options.server_type != "worker":
        raise ValueError(f"option server_type: a trainer is a worker, got {options.server_type!r}")
    options.freeze()
    params = Params() if params is None else params
    return with_gpu_tables(_nested(_fields_by_parameters(params) | _fields_by_options(options, params)), params)


def _fields_by_options(options: CpuTrainingConfig, params: Params) -> dict[str, Any]:
    """Returns field of `TrainerConfig` -> value, from the options."""
    fields = {}
    for name, effects in effects_of(type(options)).items():
        for effect in effects:
            if isinstance(effect, Sets):
                fields[effect.field] = effect.value_of(getattr(options, name))
            elif isinstance(effect, Makes):
                fields[effect.field] = effect.make(options, params)
    return fields


def _fields_by_parameters(params: Params) -> dict[str, Any]:
    """Returns field of `TrainerConfig` -> value, from the parameters of this task."""
    fields = {}
    for parameter in PARAMETERS:
        if isinstance(parameter.effect, Sets) and parameter.is_in(params):
            fields[parameter.effect.field] = parameter.effect.value_of(params.get(parameter.name))
    return fields


def _nested(fields: Mapping[str, Any]) -> TrainerConfig:
    own: dict[str, Any] = {}
    sections: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for field, value in fields.items():
        section, _, name = field.rpartition(".")
        (sections[section] if section else own)[name] = value
    unset = TrainerConfig()
    configs = {section: dataclasses.replace(getattr(unset, section), **values) for section, values in sections.items()}
    return TrainerConfig(**own, **configs)
