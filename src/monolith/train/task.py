"""`Task`: what is trained, described once. Everything else, from one process to a cluster, runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from monolith.errors import FailedPreconditionError
from monolith.nn.embeddings import weights_of
from monolith.train.compat.task_parameters import define_parameters
from monolith.train.context import TaskContext
from monolith.train.parameters.instantiable_params import InstantiableParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from monolith.data import Dataset
    from monolith.hook import Hook
    from monolith.train.parameters.params import Params

Mode: TypeAlias = Literal["train", "eval", "predict"]
"""Mode in which a task is run."""


@dataclass(slots=True, eq=False)
class Spec:
    """What a model makes of one batch."""

    loss: Tensor | None = None
    """A scalar to learn from; not needed to predict."""
    predictions: Any = None
    """A tensor, or several by the names of their heads."""
    label: Any = None
    """Labels, of the same structure; metrics compare both."""
    train_op: Callable[[], Any] | None = None
    """Called instead of backward pass, updates and ``global_step += 1``, all three of which are then its business."""


class Task:
    """A model with its input. A subclass defines what it reads (`input_fn`) and computes (`build`, `model_fn`).

    `build` makes the modules once and assigns them to attributes; `model_fn` runs for each batch. Neither depends on
    where tables are stored or how many processes there are.

    Args:
        params: Made by `params` of the class, possibly changed by the runner; None: as declared.

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

    is_saved: bool = True
    """Whether what it trains is a model, to be saved and restored; False for one that only measures."""

    def __init__(self, params: Params | None = None) -> None:
        self.p: Params = type(self).params() if params is None else params
        if not self.p.name:
            raise AssertionError(f"{type(self).__name__}: params.name must not be empty")
        self.ctx = TaskContext()
        """Services of the runner for the task."""

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns all parameters. Subclasses call it by ``super()`` and define more."""
        p = InstantiableParams(cls)
        define_parameters(p)
        p.name = cls.__name__
        return p

    # What a subclass writes

    def build(self) -> nn.Module | None:
        """Makes the modules, once: assigns them to attributes, or returns the one that holds all of them.

        Called again when the session is rebuilt after a failure.
        """

    def input_fn(self, mode: Mode) -> Dataset[Any] | Iterable[Any]:
        """Returns the input. A `Dataset` is resumed from the position in a checkpoint; anything else restarts."""
        raise NotImplementedError(f"{type(self).__name__}: write input_fn(self, mode), which returns what is read")

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Runs the model on one batch."""
        raise NotImplementedError(
            f"{type(self).__name__}: write model_fn(self, features, mode), which returns Spec(loss, predictions, label)"
        )

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None:
        """Returns the optimizers of the dense parameters: one, several by name, or None. Default: Adam."""
        parameters = [parameter for parameter in weights_of(model) if parameter.requires_grad]
        return torch.optim.Adam(parameters) if parameters else None

    def schedules(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> Mapping[str, Any]:  # noqa: ARG002
        """Returns learning-rate schedulers of torch by name, stepped after each step."""
        return {}

    def training_hooks(self) -> Sequence[Hook]:
        """Returns hooks for every worker, attached after all others."""
        return ()

    def training_chief_hooks(self) -> Sequence[Hook]:
        """Returns hooks for the chief only, attached after its saver."""
        return ()

    def signatures(self) -> Mapping[str, Sequence[str]]:
        """Returns the signatures of an export: name -> columns that it reads.

        Empty: one, ``serving_default``, that reads all columns of the example, or of the slots without one.
        """
        return {}

    # What a subclass calls

    def add_extra_output(self, name: str, outputs: Tensor | Mapping[str, Tensor]) -> None:
        """Adds a signature with these outputs to exports. Call it in `model_fn` in mode ``predict``.

        Its requests have the columns that the outputs depend on. Outside an export it does nothing.

        Args:
            name: Name of the signature.
            outputs: A tensor, or several by name.

        Raises:
            ValueError: there are outputs of this name already.

        >>> import monolith as ml
        >>> class Ranker(ml.Task):
        ...     def build(self):
        ...         self.emb = ml.Embeddings({"user": ml.Slot(dim=4), "item": ml.Slot(dim=4)})
        ...     def model_fn(self, features, mode):
        ...         rows = self.emb(features)
        ...         self.add_extra_output("user_vector", rows["user"])  # computed from the user alone
        ...         return ml.train.Spec(predictions=(rows["user"] * rows["item"]).sum(1))
        """
        outputs_by_name = self.ctx.extra_outputs
        if outputs_by_name is None:
            return
        if name in outputs_by_name:
            raise ValueError(f"add_extra_output: there are outputs {name!r} already; give them another name")
        outputs_by_name[name] = outputs

    # What a runner uses

    def make_model(self) -> nn.Module:
        """Calls `build` and returns all modules as one, by the names of their attributes."""
        model = self.build()
        if isinstance(model, nn.Module):
            return model
        if model is not None:
            raise TypeError(f"{type(self).__name__}.build: expected a Module or nothing, got {type(model).__name__}")
        modules = {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}
        loose = [name for name, value in vars(self).items() if isinstance(value, nn.Parameter)]
        if loose:
            raise FailedPreconditionError(
                f"{type(self).__name__}.build: parameter {loose[0]!r} belongs to no module and would not be trained;"
                " put it into an nn.Module"
            )
        return nn.ModuleDict(modules)

    def instantiate(self) -> Task:
        """Returns itself, so that a task can be passed where parameters are expected."""
        return self
