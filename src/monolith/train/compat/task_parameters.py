"""The table of the parameters that every task declares, as in ByteDance Monolith, with the effect of each."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from monolith.train.compat import reasons
from monolith.train.compat.effects import ReadBy, Refused, Sets
from monolith.train.parameters.params import Params

if TYPE_CHECKING:
    from monolith.train.compat.effects import Effect


class ExportMode(IntEnum):
    """How a model is exported for serving; the numbers are those of saved parameters."""

    NONE = 0
    STANDALONE = 1
    DISTRIBUTED = 2


@dataclass(frozen=True, slots=True)
class Parameter:
    """One name of the table."""

    name: str
    """Dotted: its section, then its own name."""
    default: Any
    """Default value."""
    meaning: str
    """Meaning, in a sentence."""
    effect: Effect
    """Effect of the parameter."""

    def is_in(self, params: Params) -> bool:
        """Returns whether `params` declares it; custom tasks may have other parameters."""
        section, _, name = self.name.rpartition(".")
        return (section in params and name in params[section]) if section else name in params


FOR_THE_TASK: Final = ReadBy("the task's own `input_fn` or `model_fn`, as `self.p`")
_EVALUATION = ReadBy("`Trainer.evaluate`")
_TRAINING = ReadBy("`Trainer.train`")
_STEP = ReadBy("each step of a `Session`")
_INTERVAL = ReadBy("`trainer_config_of`, where the options of these names are not set")
_FOUNTAIN = Refused(reasons.FOUNTAIN)
_INSIGHT = Refused(reasons.INSIGHT)

PARAMETERS: Final[tuple[Parameter, ...]] = (
    Parameter(
        "name", "Task", "Name of the task, by default its class's.", ReadBy("all, where nothing else names the model")
    ),
    Parameter(
        "mode",
        "train",
        "What the task is run for: train, eval or predict.",
        Refused("the call, Trainer.evaluate or predict, or the option mode sets what a task is run for"),
    ),
    Parameter(
        "accelerator",
        None,
        "None: as the options specify; 'horovod': train in step with the other ranks, as enable_sync_training does.",
        ReadBy("`Trainer`, which trains in step with other ranks; 'tpu' is refused there"),
    ),
    Parameter("clip_norm", None, "Limit of the norm of all gradients, dense and rows together; None: no limit.", _STEP),
    Parameter("sparse_norm_warmup_steps", None, "Steps in which that limit grows from 0 for the rows.", _STEP),
    Parameter("dense_weight_decay", 0.0, "Added to each dense gradient: this times the parameter.", _STEP),
    # Input
    Parameter(
        "input.eval_examples",
        None,
        "Examples of an evaluation, in batches of eval.per_replica_batch_size.",
        _EVALUATION,
    ),
    Parameter("input.train_examples", None, "Examples of training; for the task to read.", FOR_THE_TASK),
    # Evaluation
    Parameter(
        "eval.per_replica_batch_size",
        None,
        "Examples of a step of evaluation; the task makes its batches so.",
        _EVALUATION,
    ),
    Parameter(
        "eval.steps_per_eval",
        10000,
        "Steps trained between two evaluations.",
        Refused("training and evaluation do not alternate; call Trainer.evaluate between two calls of train"),
    ),
    Parameter("eval.steps", None, "Steps of an evaluation; None: to the end of the data.", _EVALUATION),
    # Training
    Parameter("train.steps", None, "Steps of one call of train.", _TRAINING),
    Parameter("train.max_steps", None, "Training ends when the global step reaches this.", _TRAINING),
    Parameter("train.per_replica_batch_size", None, "Examples of a step; for the task to read.", FOR_THE_TASK),
    Parameter("train.file_pattern", None, "What files to read; for the task to read.", FOR_THE_TASK),
    Parameter("train.repeat", False, "Begin again at the end of the data; for the task to read.", FOR_THE_TASK),
    Parameter("train.label_key", "label", "The column of the label; for the task to read.", FOR_THE_TASK),
    Parameter("train.save_checkpoints_steps", None, "Steps between checkpoints, if the config sets none.", _INTERVAL),
    Parameter("train.save_checkpoints_secs", None, "Seconds between checkpoints, if the config sets none.", _INTERVAL),
    Parameter("train.dense_only_save_checkpoints_secs", None, "Seconds between dense-only checkpoints.", _INTERVAL),
    Parameter("train.dense_only_save_checkpoints_steps", None, "Steps between dense-only checkpoints.", _INTERVAL),
    Parameter(
        "train.max_pending_seconds_for_barrier",
        30,
        "How long a save waits for the workers.",
        Sets("job.max_pending_seconds_for_barrier"),
    ),
    Parameter(
        "train.slow_start_steps",
        0,
        "Factor of the slow start: worker i waits for step int(this * ln(1 + i)).",
        Sets("job.slow_start_steps"),
    ),
    Parameter(
        "train.sample_bias",
        0.0,
        "Compensation for negatives that are emitted early; for the task to hand to its loss.",
        FOR_THE_TASK,
    ),
    Parameter(
        "train.use_gpu_emb_table",
        False,
        "Keep tables in the memory of the GPU.",
        ReadBy(
            "`Trainer`, as `DeviceConfig.tables`; refused without `enable_gpu_training`, with servers and with"
            " several ranks"
        ),
    ),
    Parameter("train.use_fountain", False, "Read from the external data service.", _FOUNTAIN),
    Parameter("train.fountain_zk_host", "", "Where that service registers.", _FOUNTAIN),
    Parameter("train.fountain_model_name", "", "The model's name there.", _FOUNTAIN),
    Parameter("train.fountain_parse_on_server", False, "Parse there.", _FOUNTAIN),
    Parameter("train.fountain_precompute_value_rowids", False, "Compute row ids there.", _FOUNTAIN),
    # Metrics
    Parameter("metrics.enable_deep_insight", False, "Send predictions of single samples.", _INSIGHT),
    Parameter(
        "metrics.deep_insight_target", "ctr_head", "Heads of which they are sent, separated by commas.", _INSIGHT
    ),
    Parameter("metrics.deep_insight_name", None, "Name of the model where the run gives none.", ReadBy("`Trainer`")),
    Parameter("metrics.deep_insight_sample_ratio", 0.01, "Share of the samples.", _INSIGHT),
    Parameter("metrics.extra_fields_keys", [], "Columns sent with them.", _INSIGHT),
    Parameter(
        "metrics.enable_throughput_hook",
        True,
        "Measure steps per second on the chief.",
        Sets("reporting.throughput", bool),
    ),
    Parameter("metrics.enable_kafka_metrics", False, "Send them to Kafka.", _INSIGHT),
    Parameter(
        "metrics.enable_tf2_profiler_hook",
        True,
        "False: no steps are profiled, whatever the run configures.",
        ReadBy("`trainer_config_of`"),
    ),
    Parameter("metrics.enable_file_metrics", False, "Write them to files.", _INSIGHT),
    Parameter("metrics.file_base_name", "jaguar_deepinsight_results", "Where those files are.", _INSIGHT),
    Parameter("metrics.file_ext", "txt", "How their names end.", _INSIGHT),
    Parameter("metrics.parse_fn", None, "Reads a message.", _INSIGHT),
    Parameter("metrics.key_fn", None, "Names the file of a message.", _INSIGHT),
    Parameter("metrics.layout_fn", None, "Writes a message.", _INSIGHT),
    Parameter("metrics.dump_filename", "", "A record file of all messages.", _INSIGHT),
    Parameter("metrics.use_data_service", False, "Read through the data service.", Refused(reasons.DATA_SERVICE)),
    # Serving
    Parameter(
        "serving.export_with_gpu_allowed", False, "Let the exported model use a GPU.", Refused(reasons.EXPORT_ON_GPU)
    ),
    Parameter(
        "serving.export_with_cleared_entry_devices",
        False,
        "Clear the devices of the entry model.",
        Refused(reasons.EXPORT_DEVICES),
    ),
    Parameter(
        "serving.export_when_saving", False, "Export with each checkpoint.", ReadBy("`Trainer`: the chief, or rank 0")
    ),
    Parameter(
        "serving.export_dir_base",
        "exported_models",
        "Where exports go, below the model directory.",
        ReadBy("`Trainer`, with `serving.export_when_saving`, and `Estimator.export_saved_model`"),
    ),
    Parameter(
        "serving.export_mode",
        ExportMode.STANDALONE,
        "In one piece, or in as many parts as `num_ps`, or as ranks with rows in training.",
        ReadBy("`Trainer`, with `serving.export_when_saving`, and `Estimator.export_saved_model`"),
    ),
    Parameter(
        "serving.shared_embedding",
        True,
        "Refer to the tables of the checkpoint instead of copying them.",
        ReadBy("`Trainer`, with `serving.export_when_saving`"),
    ),
    Parameter("serving.with_remote_gpu", False, "Export the dense part by itself.", Refused(reasons.REMOTE_GPU)),
)


def define_parameters(params: Params) -> None:
    """Declares all of them, those with a dot in the bag of their section."""
    for parameter in PARAMETERS:
        section, _, name = parameter.name.rpartition(".")
        if section and section not in params:
            params.define(section, Params(), f"Settings of {section}.")
        bag = params[section] if section else params
        bag.define(name, copy.copy(parameter.default), parameter.meaning)


def override_params(params: Params, text: str | None) -> None:
    """Sets parameters of a task by their dotted names, given as a JSON object."""
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
