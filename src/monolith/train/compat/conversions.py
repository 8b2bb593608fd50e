"""Conversions of values of flat options to those of our own configs."""

from __future__ import annotations

import functools
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from monolith.hooks import TideWindow
from monolith.tables import ProbabilisticFilter, SlidingHashFilter, make_filter
from monolith.train.config.job_config import SyncConfig
from monolith.train.config.trainer_config import PROFILE_EVERY_STEPS, ControlConfig, MarkerFilesConfig, PublishingConfig
from monolith.train.predict.candidate_items import CandidateItems

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.tables import AdmissionFilter
    from monolith.train.compat.options import CpuTrainingConfig
    from monolith.train.parameters.params import Params
    from monolith.train.task import Mode


_log = logging.getLogger(__name__)

MODES: dict[str, Mode] = {"train": "train", "eval": "eval", "infer": "predict", "predict": "predict"}
"""Values of the option `mode`, and their internal names."""


def mode_of(value: str) -> Mode:
    """Returns the internal name of a mode."""
    if value not in MODES:
        raise ValueError(f"option mode must be one of {', '.join(MODES)}, got {value!r}")
    return MODES[value]


def none_if_empty(value: Any) -> Any:
    """Returns None for 0 and the empty string, which disable a feature in ByteDance Monolith; other values unchanged.

    >>> none_if_empty(0), none_if_empty(""), none_if_empty(7)
    (None, None, 7)
    """
    return value or None


def names_of(value: str | None) -> tuple[str, ...]:
    """Returns the names of a comma-separated string.

    >>> names_of("tower.*, head.weight"), names_of(None)
    (('tower.*', 'head.weight'), ())
    """
    return tuple(name.strip() for name in (value or "").split(",") if name.strip())


def is_not_false(value: bool | None) -> bool:
    """Returns the value of a switch that is on by default (None means on)."""
    return value is not False


def negated(value: bool) -> bool:
    """Returns the negation, for options that disable what a field enables."""
    return not value


def seconds_of_hours(hours: int | None) -> int | None:
    """Converts hours to seconds; None stays None."""
    return None if hours is None else hours * 3600


def seconds_of_ms(milliseconds: int) -> float | None:
    """Seconds; None for a number below 0, which stands for no limit."""
    return None if milliseconds < 0 else milliseconds / 1000


def interval(name: str) -> Callable[[CpuTrainingConfig, Params], Any]:
    """Makes an interval of saving: an option in steps or seconds; where neither is set, the task's parameter."""
    stem, _, unit = name.rpartition("_")
    other = f"{stem}_{'secs' if unit == 'steps' else 'steps'}"

    def make(options: CpuTrainingConfig, params: Params) -> Any:
        if getattr(options, name) is None and getattr(options, other) is None:
            return parameter(params, "train", name)
        return getattr(options, name)

    return make


def profile_from(options: CpuTrainingConfig, params: Params) -> int | None:
    """Returns the first step that is profiled; None if the task forbids it."""
    is_allowed = parameter(params, "metrics", "enable_tf2_profiler_hook", default=True)
    return options.profile_some_steps_from if is_allowed else None


def profile_every(options: CpuTrainingConfig, params: Params) -> int:
    """Steps from one profile to the next."""
    name = "profile_save_steps_interval"
    if options.profile_some_steps_from is None and getattr(options, name) != options.default_of(name):
        raise ValueError(
            f"option {name}={getattr(options, name)!r} (from {options.origin(name)}) is refused: it is about profiles,"
            " of which there are none; set profile_some_steps_from, too"
        )
    is_profiled = profile_from(options, params) is not None
    return options.profile_save_steps_interval if is_profiled else PROFILE_EVERY_STEPS


def parameter(params: Params, section: str, name: str, *, default: Any = None) -> Any:
    """Returns a parameter of a task, or the default if the task does not declare it."""
    return params[section][name] if section in params and name in params[section] else default


def controller(options: CpuTrainingConfig, _: Params) -> ControlConfig | None:
    """Returns the controller's config, or None where it cannot be served, which is logged once."""
    if options.serve_controller is False:
        return None
    if find_spec("grpc") is not None:
        return ControlConfig()
    if options.serve_controller:
        raise ValueError("option serve_controller=True needs grpcio; run: pip install 'monolith-torch[control]'")
    if options.mode == "train":
        _say_that_there_is_no_controller()
    return None


@functools.cache
def _say_that_there_is_no_controller() -> None:
    _log.warning(
        "no controller is served, so that 'monolith control' cannot reach this run: grpcio is not installed; run: pip"
        " install 'monolith-torch[control]', or set serve_controller to false"
    )


def publishing(options: CpuTrainingConfig, _: Params) -> PublishingConfig | None:
    """Returns what is published to followers, or None without publishing.

    Raises:
        ValueError: an option of the delta log is set without a log.
    """
    if not options.enable_realtime_training:
        _require_defaults(options, _OF_THE_LOG, about="the delta log of a run", switch="enable_realtime_training")
        return None
    return PublishingConfig(
        log=options.delta_log,
        interval=options.delta_log_interval_secs,
        dense_interval=options.delta_log_dense_interval_secs,
        base_folder=options.delta_log_base_dir,
    )


_OF_THE_LOG = ("delta_log", "delta_log_interval_secs", "delta_log_dense_interval_secs", "delta_log_base_dir")


def _require_defaults(options: CpuTrainingConfig, names: Sequence[str], *, about: str, switch: str) -> None:
    """Refuses options that were set without the one that makes them mean something."""
    for name in names:
        if getattr(options, name) != options.default_of(name):
            raise ValueError(
                f"option {name}={getattr(options, name)!r} (from {options.origin(name)}) is refused: it is about"
                f" {about}; set {switch}, too, or leave it at {options.default_of(name)!r}"
            )


def candidate_items(options: CpuTrainingConfig, _: Params) -> CandidateItems | None:
    """Items that are predicted after training."""
    if not options.enable_resource_constrained_roughsort:
        _require_defaults(options, _OF_ITEMS, about="candidate items", switch="enable_resource_constrained_roughsort")
        return None
    if options.roughsort_candidate_items_path is None:
        raise ValueError(
            "option enable_resource_constrained_roughsort: it needs candidate items; give"
            " roughsort_candidate_items_path, too"
        )
    return CandidateItems(
        path=options.roughsort_candidate_items_path,
        parquet=options.roughsort_items_use_parquet,
        lagrangex_header=options.items_input_lagrangex_header,
        has_sort_id=options.items_input_has_sort_id,
        kafka_dump=options.items_input_kafka_dump,
        kafka_dump_prefix=options.items_input_kafka_dump_prefix,
    )


_OF_ITEMS = (
    "roughsort_candidate_items_path",
    "roughsort_items_use_parquet",
    "items_input_lagrangex_header",
    "items_input_has_sort_id",
    "items_input_kafka_dump",
    "items_input_kafka_dump_prefix",
)


def recovers_partly(options: CpuTrainingConfig, _: Params) -> bool:
    """Returns whether lost servers recover on their own; by default only in a run that publishes."""
    said: bool | None = options.partial_recovery
    return options.enable_realtime_training if said is None else said


def dense_seconds(options: CpuTrainingConfig, params: Params) -> float | None:
    """Returns the seconds between checkpoints without tables; half an hour by default in a run that publishes."""
    said: float | None = interval("dense_only_save_checkpoints_secs")(options, params)
    has_steps = interval("dense_only_save_checkpoints_steps")(options, params) is not None
    return _DENSE_SECONDS if said is None and not has_steps and options.enable_realtime_training else said


_DENSE_SECONDS = 1800.0


def marker_files(options: CpuTrainingConfig, params: Params) -> MarkerFilesConfig | None:
    """Returns the marker files of ranks that publish: as upstream, checkpoints without tables need the file ``ONLINE``.

    The other marker files, and those of a single process that publishes, are only checked if a config enables them.
    """
    if not (options.enable_realtime_training and trains_in_step(options, params)):
        return None
    return MarkerFilesConfig(dump_look_steps=None, limit_look_steps=None, online_look_steps=_ONLINE_LOOK_STEPS)


_ONLINE_LOOK_STEPS = 100


def trains_in_step(options: CpuTrainingConfig, params: Params) -> bool:
    """Returns whether options, or the task's parameter ``accelerator``, request synchronous ranks."""
    return options.enable_sync_training or ("accelerator" in params and params.accelerator == "horovod")


def synchronous(options: CpuTrainingConfig, params: Params) -> SyncConfig | None:
    """Returns the config of synchronous ranks, or None."""
    if not trains_in_step(options, params):
        ranks = "the ranks of synchronous training"
        _require_defaults(options, _OF_RANKS, about=ranks, switch="enable_sync_training")
        return None
    if options.serve_controller:
        raise ValueError(
            "option serve_controller=True is refused with enable_sync_training: a call to one rank cannot save all of"
            " them; use files in the model directory (docs/how-to/hooks.md), or leave it at None"
        )
    own_folders = None if options.merge_sync_training_ckpt else getattr(options, "uuid", "")
    slot = options.enable_alltoall_metrics_for_slot
    if slot is not None and not options.enable_alltoall_metrics:
        raise ValueError(
            f"option enable_alltoall_metrics_for_slot={slot!r} counts nothing without enable_alltoall_metrics; set it,"
            " too"
        )
    return SyncConfig(
        combine=options.sync_combine,
        own_folders=own_folders,
        timeout_seconds=options.sync_timeout_secs,
        alltoall_metrics=options.enable_alltoall_metrics,
        alltoall_metrics_slot=slot,
    )


_OF_RANKS = (
    "sync_combine",
    "sync_timeout_secs",
    "merge_sync_training_ckpt",
    "enable_alltoall_metrics",
    "enable_alltoall_metrics_for_slot",
    "enable_async_optimize",
    "enable_pipelined_fwda2a",
    "enable_pipelined_bwda2a",
)


def prefetch(options: CpuTrainingConfig, _: Params) -> int:
    """Batches whose rows are read ahead."""
    return options.embedding_prefetch_capacity + options.enable_pipelined_fwda2a


def postpush(options: CpuTrainingConfig, _: Params) -> bool:
    """Returns whether gradients of rows are applied concurrently with the next step."""
    return options.enable_embedding_postpush or options.enable_async_optimize


def late_update(options: CpuTrainingConfig, _: Params) -> bool:
    """Returns whether postponed gradients are applied one more step later."""
    if options.enable_pipelined_bwda2a and not options.enable_async_optimize:
        raise ValueError(
            "option enable_pipelined_bwda2a=True needs enable_async_optimize: it puts off the update of rows one step"
            " more than that does; set both, or neither"
        )
    return options.enable_pipelined_bwda2a


def tide_window(options: CpuTrainingConfig, _: Params) -> TideWindow | None:
    """Returns the hours in which cheap machines are available, or None if not set."""
    return TideWindow.of(
        {
            "tide_start_hour": options.tide_start_hour,
            "tide_start_minute": options.tide_start_minute,
            "tide_end_hour": options.tide_end_hour,
            "tide_end_minute": options.tide_end_minute,
        }
    )


def admission(options: CpuTrainingConfig, _: Params) -> AdmissionFilter | None:
    """Returns how occurrences are counted, or None if not set."""
    names = ("filter_type", "filter_capacity", "filter_split_num", "filter_equal_probability")
    if not any(options.is_set(name) for name in names):
        return None
    row_filter = make_filter(options.filter_type)
    if isinstance(row_filter, SlidingHashFilter):
        if options.is_set("filter_equal_probability"):
            raise ValueError("option filter_equal_probability needs filter_type=probabilistic_filter")
        return SlidingHashFilter(capacity=options.filter_capacity, split_num=options.filter_split_num)
    for name in ("filter_capacity", "filter_split_num"):
        if options.is_set(name):
            raise ValueError(f"option {name} needs filter_type=sliding_hash_filter, got {options.filter_type}")
    if isinstance(row_filter, ProbabilisticFilter):
        return ProbabilisticFilter(equal_probability=options.filter_equal_probability)
    if options.is_set("filter_equal_probability"):
        raise ValueError("option filter_equal_probability needs filter_type=probabilistic_filter")
    return row_filter
