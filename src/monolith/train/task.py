"""`Task`: what is trained, described once. Everything else, from one process to a cluster, runs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from monolith.errors import FailedPreconditionError
from monolith.train.context import TaskContext
from monolith.train.instantiable_params import InstantiableParams
from monolith.train.params import Params

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from monolith.data.dataset import Dataset
    from monolith.hook import Hook

__all__ = ["ExportMode", "Mode", "Spec", "Task"]

Mode: TypeAlias = Literal["train", "eval", "predict"]
"""What a task is run for."""


class ExportMode(IntEnum):
    """How a model is exported for serving; the numbers are those of saved parameters."""

    NONE = 0
    STANDALONE = 1
    DISTRIBUTED = 2


@dataclass(slots=True, eq=False)
class Spec:
    """What a model makes of one batch."""

    loss: Tensor | None = None
    """A scalar to learn from; not needed to predict."""
    predictions: Any = None
    """A tensor, or several by the names of their heads."""
    label: Any = None
    """The same for what should have been predicted; metrics compare the two."""
    train_op: Callable[[], Any] | None = None
    """Called instead of backward pass, updates and ``global_step += 1``, all three of which are then its business."""


class Task:
    """What is trained. A subclass says what it reads (`input_fn`) and what it computes (`build`, `model_fn`).

    `build` makes the modules once and assigns them to attributes; `model_fn` runs for each batch. Neither knows where
    tables live or how many processes there are.

    Args:
        params: Made by `params` of the class, and changed by whoever runs the task; None: as declared.

    >>> import monolith as ml
    >>> class Ranker(ml.Task):
    ...     def build(self):
    ...         self.emb = ml.Embeddings({"user": ml.Slot(dim=4)})
    ...     def input_fn(self, mode):
    ...         return [{"user": torch.tensor([7, 8]), "label": torch.tensor([1.0, 0.0])}] * 3
    ...     def model_fn(self, features, mode):
    ...         logits = self.emb(features)["user"].sum(1)
    ...         loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
    ...         return ml.train.Spec(loss, predictions=logits.sigmoid(), label=features["label"])
    >>> ml.train.Trainer(Ranker()).train().global_step
    3
    """

    def __init__(self, params: Params | None = None) -> None:
        self.p: Params = type(self).params() if params is None else params
        if not self.p.name:
            raise AssertionError(f"{type(self).__name__}: params.name must not be empty")
        self.ctx = TaskContext()
        """What the runner offers to the task while it runs."""

    @classmethod
    def params(cls) -> InstantiableParams:
        """Everything that can be set. Subclasses call it by ``super()`` and define more."""
        p = InstantiableParams(cls)
        p.define("name", cls.__name__, "Name of the task.")
        p.define("mode", "train", "What the task is run for: train, eval or predict.")
        p.define("accelerator", None, "None: this process alone; 'horovod' and 'tpu' belong to other runners.")
        p.define("clip_norm", None, "Limit of the norm of all gradients, dense and rows together; None: no limit.")
        p.define("sparse_norm_warmup_steps", None, "Steps in which that limit grows from 0 for the rows.")
        p.define("dense_weight_decay", 0.0, "Added to each dense gradient: this times the parameter.")
        for name, define in _SECTIONS.items():
            p.define(name, Params(), f"Settings of {name}.")
            define(p.get(name))
        return p

    # What a subclass writes

    def build(self) -> nn.Module | None:
        """Makes the modules, once: assigns them to attributes, or returns the one that holds all of them.

        Called again when the session is rebuilt after a failure.
        """

    def input_fn(self, mode: Mode) -> Dataset[Any] | Iterable[Any]:
        """What to read. A `Dataset` is resumed where a checkpoint left it; anything else starts over."""
        raise NotImplementedError(f"{type(self).__name__}: write input_fn(self, mode), which returns what is read")

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """What the model makes of one batch."""
        raise NotImplementedError(
            f"{type(self).__name__}: write model_fn(self, features, mode), which returns Spec(loss, predictions, label)"
        )

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None:
        """Of the dense parameters: one, several by name, or None; Adam with its defaults if not overridden."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.Adam(parameters) if parameters else None

    def schedules(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> Mapping[str, Any]:  # noqa: ARG002
        """Learning-rate schedulers of torch by name, stepped after each step."""
        return {}

    def training_hooks(self) -> Sequence[Hook]:
        """Attached on every worker, behind all others."""
        return ()

    def training_chief_hooks(self) -> Sequence[Hook]:
        """Attached on the chief only, behind its saver."""
        return ()

    def signatures(self) -> Mapping[str, Sequence[str]]:
        """What an export offers: name of a signature -> columns that it reads.

        Empty: one, ``serving_default``, that reads all columns of the example, or of the slots without one.
        """
        return {}

    # What a runner uses

    def make_model(self) -> nn.Module:
        """Calls `build` and returns all modules as one, by the names of their attributes."""
        made = self.build()
        if isinstance(made, nn.Module):
            return made
        if made is not None:
            raise TypeError(f"{type(self).__name__}.build: expected a Module or nothing, got {type(made).__name__}")
        modules = {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}
        loose = [name for name, value in vars(self).items() if isinstance(value, nn.Parameter)]
        if loose:
            raise FailedPreconditionError(
                f"{type(self).__name__}.build: parameter {loose[0]!r} belongs to no module and would not be trained;"
                " put it into an nn.Module"
            )
        return nn.ModuleDict(modules)

    def instantiate(self) -> Task:
        """Itself, so that a task can stand where parameters are expected."""
        return self


def _define_input(p: Params) -> None:
    p.define("eval_examples", None, "Examples of an evaluation, in batches of eval.per_replica_batch_size.")
    p.define("train_examples", None, "Examples of training; for the task to read.")


def _define_eval(p: Params) -> None:
    p.define("per_replica_batch_size", None, "Examples of a step of evaluation; the task makes its batches so.")
    p.define("steps_per_eval", 10000, "Steps trained between two evaluations.")
    p.define("steps", None, "Steps of an evaluation; None: to the end of the data.")


def _define_train(p: Params) -> None:
    p.define("steps", None, "Steps of one call of train.")
    p.define("max_steps", None, "Training ends when the global step reaches this.")
    p.define("per_replica_batch_size", None, "Examples of a step; for the task to read.")
    p.define("file_pattern", None, "What files to read; for the task to read.")
    p.define("repeat", False, "Begin again at the end of the data; for the task to read.")
    p.define("label_key", "label", "The column of the label; for the task to read.")
    p.define("save_checkpoints_steps", None, "Steps between checkpoints, where the config says nothing.")
    p.define("save_checkpoints_secs", None, "Seconds between checkpoints, where the config says nothing.")
    p.define("dense_only_save_checkpoints_secs", None, "Seconds between dense-only checkpoints.")
    p.define("dense_only_save_checkpoints_steps", None, "Steps between dense-only checkpoints.")
    p.define("max_pending_seconds_for_barrier", 30, "How long a save waits for the workers.")
    p.define("slow_start_steps", 0, "Factor of the slow start: worker i waits for step int(this * ln(1 + i)).")
    p.define("sample_bias", 0.0, "Compensation for negatives that are emitted early; for the task to hand to its loss.")
    p.define("use_gpu_emb_table", False, "Keep tables on the GPU.")
    p.define("use_fountain", False, "Read from the external data service.")
    p.define("fountain_zk_host", "", "Where that service registers.")
    p.define("fountain_model_name", "", "The model's name there.")
    p.define("fountain_parse_on_server", False, "Parse there.")
    p.define("fountain_precompute_value_rowids", False, "Compute row ids there.")


def _define_metrics(p: Params) -> None:
    p.define("enable_deep_insight", False, "Send predictions of single samples.")
    p.define("deep_insight_target", "ctr_head", "Heads of which they are sent, separated by commas.")
    p.define("deep_insight_name", None, "Name of the model where the run gives none.")
    p.define("deep_insight_sample_ratio", 0.01, "Share of the samples.")
    p.define("extra_fields_keys", [], "Columns sent with them.")
    p.define("enable_throughput_hook", True, "Measure steps per second on the chief.")
    p.define("enable_kafka_metrics", False, "Send them to Kafka.")
    p.define("enable_tf2_profiler_hook", True, "False: no steps are profiled, whatever the run says.")
    p.define("enable_file_metrics", False, "Write them to files.")
    p.define("file_base_name", "jaguar_deepinsight_results", "Where those files are.")
    p.define("file_ext", "txt", "How their names end.")
    p.define("parse_fn", None, "Reads a message.")
    p.define("key_fn", None, "Names the file of a message.")
    p.define("layout_fn", None, "Writes a message.")
    p.define("dump_filename", "", "A record file of all messages.")
    p.define("use_data_service", False, "Read through the data service.")


def _define_serving(p: Params) -> None:
    p.define("export_with_gpu_allowed", False, "Let the exported model use a GPU.")
    p.define("export_with_cleared_entry_devices", False, "Forget the devices of the entry model.")
    p.define("export_when_saving", False, "Export with each checkpoint.")
    p.define("export_dir_base", "exported_models", "Where exports go, below the model directory.")
    p.define("export_mode", ExportMode.DISTRIBUTED, "In one piece or by parts.")
    p.define("shared_embedding", True, "Refer to the tables of the checkpoint instead of copying them.")
    p.define("with_remote_gpu", False, "Export the dense part by itself.")


_SECTIONS: dict[str, Callable[[Params], None]] = {
    "input": _define_input,
    "eval": _define_eval,
    "train": _define_train,
    "metrics": _define_metrics,
    "serving": _define_serving,
}
