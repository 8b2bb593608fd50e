"""Options of the original that do nothing here, each with the reason: setting one is an error, never a silence.

``docs/options.md`` lists them beside those that work, and a test holds both against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from monolith import environment

if TYPE_CHECKING:
    from monolith.train.flat_config import FlatConfig

__all__ = ["CLUSTER", "FOUNTAIN", "INSIGHT", "REFUSED_OPTIONS", "REFUSED_VARIABLES", "SERVING", "require_effective"]

CLUSTER = "runs of several processes are not part of this version"
_SYNC = "synchronous training by collective calls is not part of this version"
SERVING = "serving and what is sent to it are not part of this version"
_ITEMS = "candidate items are not predicted after training; use Trainer.predict over them"
FOUNTAIN = "the external data service is not public"
_TENSORFLOW = "it tunes TensorFlow, which is not used"
INSIGHT = "messages about single samples are not part of this version"
_BYTEPS = "exchange between ranks is not part of this version"

REFUSED_OPTIONS: Final[dict[str, str]] = {
    "use_native_multi_hash_table": "there is one kind of table; only True and None are taken",
    "enable_variable_prefetch": "dense variables are in this process; there is no remote copy to fetch",
    "enable_variable_postpush": "dense variables are in this process; there is nothing to push",
    "enable_sync_training": _SYNC,
    "enable_partial_sync_training": _SYNC,
    "enable_gpu_training": "a task places its modules itself, with .to('cuda') in build()",
    "processes_per_gpu": _SYNC,
    "merge_sync_training_ckpt": _SYNC,
    "partial_recovery": CLUSTER,
    "enable_realtime_training": SERVING,
    "enable_async_optimize": _SYNC,
    "enable_pipelined_fwda2a": _SYNC,
    "enable_pipelined_bwda2a": _SYNC,
    "profile_with_nvprof_from_to": "attach monolith.hooks.CudaProfilerHook to the trainer instead",
    "reorder_fids_in_data_pipeline": "the reading thread does so whenever embedding_prefetch_capacity > 0",
    "chief_timeout_secs": CLUSTER,
    "dense_only_stop_training_when_save": CLUSTER,
    "warmup_file": SERVING,
    "skip_zero_embedding_when_serving": SERVING,
    "max_rpc_deadline_millis": SERVING,
    "containers_ready_time_secs": CLUSTER,
    "max_slow_start_wait_minute": CLUSTER,
    "enable_model_ckpt_info": "counts by slot are written with every checkpoint, to ckpt.info-<step>",
    "only_feature_engineering": "batches are not written as ExampleBatch files; see monolith data convert",
    "enable_variable_partition": CLUSTER,
    "enable_fused_layout": "lookups always go straight into one buffer of the model's layout",
    "force_shutdown_ps": CLUSTER,
    "enable_model_dump": "a model is exchanged as an export, see Trainer.export",
    "enable_resource_constrained_roughsort": _ITEMS,
    "roughsort_candidate_items_path": _ITEMS,
    "roughsort_items_use_parquet": _ITEMS,
    "items_input_lagrangex_header": _ITEMS,
    "items_input_has_sort_id": _ITEMS,
    "items_input_kafka_dump": _ITEMS,
    "items_input_kafka_dump_prefix": _ITEMS,
    "device_fn": "devices are those of the modules; place them in build()",
    "use_dataservice": "TensorFlow's data service is not used",
    "num_extra_dsworker_on_gpu_worker": "TensorFlow's data service is not used",
    "save_summary_steps": "summaries are written by hooks of the task; see docs/how-to/summaries.md",
    "tensorboard_log_path": "the original declared it and never read it; give the summary hook its folder",
    "num_extra_ps": CLUSTER,
    "num_redundant_ps": CLUSTER,
    "operation_timeout_in_ms": CLUSTER,
    "session_creation_timeout_secs": CLUSTER,
    "max_retry_times": CLUSTER,
    "retry_wait_in_secs": CLUSTER,
    "fountain_zk_host": FOUNTAIN,
    "fountain_model_name": FOUNTAIN,
    "dc_aware": SERVING,
    "enable_fid_dedup": "ids are always made distinct; the original declared it only",
    "bzid": SERVING,
    "base_name": SERVING,
    "ps_replica_num": SERVING,
    "tf_grpc_worker_cache_threads": _TENSORFLOW,
    "monolith_grpc_worker_service_handler_multiplier": _TENSORFLOW,
    "deep_insight_target": INSIGHT,
    "deep_insight_sample_ratio": INSIGHT,
    "unified_serving": SERVING,
    "use_estimator": "the original declared it only",
    "enable_dynamic_sharding": CLUSTER,
    "max_task_num_per_worker": CLUSTER,
}
"""Option -> why a value other than its default is refused."""

REFUSED_VARIABLES: Final[dict[str, str]] = {
    "MONOLITH_WITH_OPTIMIZED_HOROVOD": _BYTEPS,
    "MONOLITH_WITH_HOROVOD_FID_G2G": _BYTEPS,
    "MONOLITH_WITH_HOROVOD_FWD_G2G": _BYTEPS,
    "MONOLITH_WITH_HOROVOD_BWD_G2G": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_FID": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_FWD": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_BWD": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_BWD_CAST": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_BWD_FAKE_CAST": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_FWD_GDR": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_BWD_GDR": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_FWD_GDR_G2G": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_BWD_GDR_G2G": _BYTEPS,
    "MONOLITH_WITH_BYTEPS_ALLREDUCE": _BYTEPS,
    "MONOLITH_WITH_ALLREDUCE_FUSION": _BYTEPS,
    "MONOLITH_WITH_ALLREDUCE_FP16": _BYTEPS,
    "MONOLITH_SKIP_ALLREDUCE": _BYTEPS,
    "MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD": _BYTEPS,
    "MONOLITH_GPU_FEATURE_FACTORY_FUSION_LEVEL": "pooling is always one pass",
    "MONOLITH_BENCHMARK_BPS": _BYTEPS,
    "MONOLITH_BENCHMARK_ITERS": _BYTEPS,
    "MONOLITH_BENCHMARK_BPS_AR_LEN": _BYTEPS,
    "MONOLITH_BENCHMARK_BPS_A2A_LEN": _BYTEPS,
    "MONOLITH_FORCE_GPU_COMPATIBLE": _TENSORFLOW,
    "MONOLITH_SAVE_SUMMARY_INTERVAL": _SYNC,
    "MONOLITH_ROOT_LOG_INTERVAL": _SYNC,
}
"""Variable of the environment -> why it is refused when it is set."""

_ALLOWED: Final[dict[str, frozenset[object]]] = {"use_native_multi_hash_table": frozenset({True})}
"""Values besides the default that say what is so anyway."""


def require_effective(config: FlatConfig) -> None:
    """Refuses options and variables that would do nothing.

    Raises:
        ValueError: names it, its value and the reason.
    """
    for name in config.option_names():
        value = getattr(config, name)
        if name in REFUSED_OPTIONS and value != config.default_of(name) and value not in _ALLOWED.get(name, ()):
            origin = config.origin(name)
            raise ValueError(f"option {name}={value!r} (from {origin}) is refused: {REFUSED_OPTIONS[name]}")
    for name, reason in REFUSED_VARIABLES.items():
        if environment.get(name) is not None:
            raise ValueError(f"environment variable {name} is refused: {reason}; unset it")
