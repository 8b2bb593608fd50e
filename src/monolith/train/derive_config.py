"""From flat options to the frozen configs, nested by owner, that are all the inside sees."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from monolith.hooks.tide import TideWindow
from monolith.tables.filters import ProbabilisticFilter, SlidingHashFilter, make_filter
from monolith.train.input_options import InputOptions
from monolith.train.params import Params
from monolith.train.refused_options import require_effective
from monolith.train.trainer_config import (
    ControlConfig,
    PipelineConfig,
    ReportingConfig,
    RestoringConfig,
    SavingConfig,
    TablesConfig,
    TrainerConfig,
)

if TYPE_CHECKING:
    from monolith.tables.filters import AdmissionFilter
    from monolith.train.cpu_training_config import CpuTrainingConfig

__all__ = ["override_params", "trainer_config_of"]

MODES = {"train": "train", "eval": "eval", "infer": "predict", "predict": "predict"}
"""What `mode` may be, and what it is called inside."""


def trainer_config_of(options: CpuTrainingConfig, params: Params | None = None) -> TrainerConfig:
    """What a trainer is told by these options; from now on they cannot change.

    Args:
        options: Flat options of any of the three classes.
        params: Of the task; they give intervals of saving where the options give none.

    Raises:
        ValueError: an option that does nothing here, or that contradicts another one.
    """
    require_effective(options)
    if options.server_type != "worker":
        raise ValueError(f"option server_type: a trainer is a worker, got {options.server_type!r}")
    if options.mode not in MODES:
        raise ValueError(f"option mode must be one of {', '.join(MODES)}, got {options.mode!r}")
    options.freeze()
    return TrainerConfig(
        model_dir=_get(options, "model_dir") or None,
        model_name=options.model_name,
        saving=_saving(options, params),
        restoring=_restoring(options),
        pipeline=PipelineConfig(
            prefetch=options.embedding_prefetch_capacity, postpush=options.enable_embedding_postpush
        ),
        tables=_tables(options),
        reporting=_reporting(options, params),
        control=ControlConfig() if find_spec("grpc") else None,
        input=_input(options),
        worker_index=options.index,
        num_workers=options.num_workers,
    )


def override_params(params: Params, text: str | None) -> None:
    """Sets parameters of a task by their dotted names, given as a JSON object.

    Raises:
        ValueError: it is no JSON object, or has a name that is not declared.
    """
    if not text:
        return
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"option params_override must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"option params_override must be a JSON object, got {text!r}")  # noqa: TRY004 - a wrong value
    try:
        params.set(**values)
    except (AttributeError, AssertionError) as error:
        raise ValueError(f"option params_override: {error}") from error


def _get(options: CpuTrainingConfig, name: str) -> Any:
    """An option that only the wider classes have."""
    return getattr(options, name, None)


def _saving(options: CpuTrainingConfig, params: Params | None) -> SavingConfig:
    train = params.train if params is not None and "train" in params else Params()
    steps, seconds = _interval(options, train, "")
    dense_steps, dense_seconds = _interval(options, train, "dense_only_")
    window = TideWindow.of(
        {
            "tide_start_hour": options.tide_start_hour,
            "tide_start_minute": options.tide_start_minute,
            "tide_end_hour": options.tide_end_hour,
            "tide_end_minute": options.tide_end_minute,
        }
    )
    return SavingConfig(
        every_steps=steps,
        every_seconds=seconds,
        dense_every_steps=dense_steps,
        dense_every_seconds=dense_seconds,
        max_to_keep=options.checkpoints_max_to_keep,
        evict_after=options.feature_eviction_on_save,
        tide_window=window,
        tide_every_seconds=options.tide_save_secs,
    )


def _interval(options: CpuTrainingConfig, train: Params, prefix: str) -> tuple[int | None, float | None]:
    """Steps or seconds: those of the options, else those of the task."""
    names = (f"{prefix}save_checkpoints_steps", f"{prefix}save_checkpoints_secs")
    steps, seconds = (getattr(options, name) for name in names)
    if steps is None and seconds is None:
        steps, seconds = (train[name] if name in train else None for name in names)  # noqa: SIM401 - no dict
    return steps, seconds


def _restoring(options: CpuTrainingConfig) -> RestoringConfig:
    return RestoringConfig(
        checkpoint=_get(options, "restore_ckpt"),
        from_dir=_get(options, "restore_dir"),
        alone=bool(_get(options, "is_local")),
        clear_nn=options.clear_nn,
        continue_training=options.continue_training,
        alias_map=options.reload_alias_map,
        auto_alias=options.enable_alias_map_auto_gen is not False,
    )


def _tables(options: CpuTrainingConfig) -> TablesConfig:
    if options.num_ps > 0 and options.num_workers > 1:
        raise ValueError(
            f"option num_ps={options.num_ps}: servers are in the process of their only worker, got"
            f" num_workers={options.num_workers}; runs of several processes are not part of this version"
        )
    return TablesConfig(
        admission=_admission(options),
        initial_capacity=options.hashtable_init_capacity or None,
        num_ps=options.num_ps,
        evict_every_steps=options.feature_evict_every_n_steps or None,
        evict_every_seconds=options.feature_evict_every_n_hours * 3600 or None,
    )


def _admission(options: CpuTrainingConfig) -> AdmissionFilter | None:
    names = ("filter_type", "filter_capacity", "filter_split_num", "filter_equal_probability")
    if not any(options.is_set(name) for name in names):
        return None
    made = make_filter(options.filter_type)
    if isinstance(made, SlidingHashFilter):
        if options.is_set("filter_equal_probability"):
            raise ValueError("option filter_equal_probability needs filter_type=probabilistic_filter")
        return SlidingHashFilter(capacity=options.filter_capacity, split_num=options.filter_split_num)
    for name in ("filter_capacity", "filter_split_num"):
        if options.is_set(name):
            raise ValueError(f"option {name} needs filter_type=sliding_hash_filter, got {options.filter_type}")
    if isinstance(made, ProbabilisticFilter):
        return ProbabilisticFilter(equal_probability=options.filter_equal_probability)
    if options.is_set("filter_equal_probability"):
        raise ValueError("option filter_equal_probability needs filter_type=probabilistic_filter")
    return made


def _reporting(options: CpuTrainingConfig, params: Params | None) -> ReportingConfig:
    metrics = params.metrics if params is not None and "metrics" in params else Params()
    is_profiled = "enable_tf2_profiler_hook" not in metrics or bool(metrics.enable_tf2_profiler_hook)
    return ReportingConfig(
        throughput="enable_throughput_hook" not in metrics or bool(metrics.enable_throughput_hook),
        log_every_steps=options.log_step_count_steps or None,
        train_metrics=_get(options, "disable_native_metrics") is False,
        profile_from=options.profile_some_steps_from if is_profiled else None,
        profile_every_steps=options.profile_save_steps_interval,
        cluster_type=options.cluster_type,
        submit_time=options.submit_time_secs,
    )


def _input(options: CpuTrainingConfig) -> InputOptions:
    names = [field.name for field in dataclasses.fields(InputOptions) if hasattr(options, field.name)]
    return InputOptions(**{name: getattr(options, name) for name in names})
