"""Parameters that every task declares and that do nothing here, each with the reason: setting one is an error.

``docs/options.md`` lists them beside those that work, and a test holds both against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from monolith.train.refused_options import CLUSTER, FOUNTAIN, INSIGHT, SERVING

if TYPE_CHECKING:
    from monolith.train.params import Params

__all__ = ["REFUSED_PARAMETERS", "require_effective_parameters"]

REFUSED_PARAMETERS: Final[dict[str, str]] = {
    "mode": "what a task is run for is said by the call, Trainer.evaluate or predict, or by the option mode",
    "accelerator": "a task places its modules itself, with .to('cuda') in build()",
    "eval.steps_per_eval": "training and evaluation do not alternate; call Trainer.evaluate between two calls of train",
    "train.max_pending_seconds_for_barrier": CLUSTER,
    "train.slow_start_steps": CLUSTER,
    "train.use_gpu_emb_table": "tables are in the memory of the CPUs",
    "train.use_fountain": FOUNTAIN,
    "train.fountain_zk_host": FOUNTAIN,
    "train.fountain_model_name": FOUNTAIN,
    "train.fountain_parse_on_server": FOUNTAIN,
    "train.fountain_precompute_value_rowids": FOUNTAIN,
    "metrics.enable_deep_insight": INSIGHT,
    "metrics.deep_insight_target": INSIGHT,
    "metrics.deep_insight_sample_ratio": INSIGHT,
    "metrics.extra_fields_keys": INSIGHT,
    "metrics.enable_kafka_metrics": INSIGHT,
    "metrics.enable_file_metrics": INSIGHT,
    "metrics.file_base_name": INSIGHT,
    "metrics.file_ext": INSIGHT,
    "metrics.parse_fn": INSIGHT,
    "metrics.key_fn": INSIGHT,
    "metrics.layout_fn": INSIGHT,
    "metrics.dump_filename": INSIGHT,
    "metrics.use_data_service": "TensorFlow's data service is not used",
    "serving.export_with_gpu_allowed": SERVING,
    "serving.export_with_cleared_entry_devices": SERVING,
    "serving.export_when_saving": SERVING,
    "serving.export_mode": SERVING,
    "serving.shared_embedding": SERVING,
    "serving.with_remote_gpu": SERVING,
}
"""Dotted name of a parameter -> why a value other than its default is refused."""


def require_effective_parameters(params: Params, defaults: Params) -> None:
    """Refuses parameters that would do nothing.

    Args:
        params: Of a task.
        defaults: As every task declares them.

    Raises:
        ValueError: names it, its value and the reason.
    """
    for name, reason in REFUSED_PARAMETERS.items():
        value = params.get(name)
        if value != defaults.get(name):
            raise ValueError(f"task {params.name}: parameter {name}={value!r} is refused: {reason}")
