"""A task whose batches say which one is the last, so that the ranks of a synchronous run can end together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from monolith.data.dataset import Dataset
from monolith.hooks.end_of_data import EofHook
from monolith.nn.batch_turn import current_turn
from monolith.train.task import Spec, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn, optim

    from monolith.hook import Hook
    from monolith.train.task import Mode

__all__ = ["EofAwareTask"]

EOF_KEY: Final = "__EofAwareTask_eof"
FEATURES_KEY: Final = "1"
FLAG_KEY: Final = "2"


class EofAwareTask(Task):
    """A task whose batches say whether they are the last one, and whose ranks stop together.

    The flag travels with the features, as one more key ``__EofAwareTask_eof`` of a mapping; features that are no
    mapping travel as ``"1"``, the flag as ``"2"``. The wrapped task sees its features as they were.

    Args:
        task: What is run. Its `params`, context and modules are used as they are.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task.p)
        self._task = task
        self.ctx = task.ctx
        self._last = False

    @property
    def task(self) -> Task:
        """The wrapped one."""
        return self._task

    def input_fn(self, mode: Mode) -> Dataset[Any] | Iterable[Any]:
        """The batches of the task, one read ahead, with their flags."""
        source = self._task.input_fn(mode)
        if isinstance(source, Dataset):
            return source.mark_last().map(lambda pair: _flagged(*pair))
        return _read_ahead(source)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Calls the task with its own features, and remembers the flag."""
        features, self._last = _unflagged(features)
        turn = current_turn()
        if turn is not None:
            turn.features = features  # what was read ahead for this batch is for what the task sees
        return self._task.model_fn(features, mode)

    def training_hooks(self) -> Sequence[Hook]:
        """The hook that stops all ranks, then those of the task."""
        return (EofHook(lambda: self._last), *self._task.training_hooks())

    # As the task says

    def build(self) -> nn.Module | None:
        """As the task does."""
        return self._task.build()

    def make_model(self) -> nn.Module:
        """As the task does."""
        return self._task.make_model()

    def optimizers(self, model: nn.Module) -> optim.Optimizer | Mapping[str, optim.Optimizer] | None:
        """As the task does."""
        return self._task.optimizers(model)

    def schedules(self, optimizers: Mapping[str, optim.Optimizer]) -> Mapping[str, Any]:
        """As the task does."""
        return self._task.schedules(optimizers)

    def training_chief_hooks(self) -> Sequence[Hook]:
        """As the task does."""
        return self._task.training_chief_hooks()

    def signatures(self) -> Mapping[str, Sequence[str]]:
        """As the task does."""
        return self._task.signatures()


class _FlaggedFeatures(Mapping[str, Any]):
    """A mapping with the flag as one more key; keeps the mapping itself, which may be more than its columns."""

    __slots__ = ("features", "is_last")

    def __init__(self, features: Mapping[str, Any], is_last: bool) -> None:
        self.features = features
        self.is_last = is_last

    def __getitem__(self, name: str) -> Any:
        return self.is_last if name == EOF_KEY else self.features[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.features
        yield EOF_KEY

    def __len__(self) -> int:
        return len(self.features) + 1


def _flagged(features: Any, is_last: bool) -> Mapping[str, Any]:
    if isinstance(features, Mapping):
        return _FlaggedFeatures(features, is_last)
    return {FEATURES_KEY: features, FLAG_KEY: is_last}


def _unflagged(features: Any) -> tuple[Any, bool]:
    if isinstance(features, _FlaggedFeatures):
        return features.features, features.is_last
    if isinstance(features, Mapping) and EOF_KEY in features:
        return {name: value for name, value in features.items() if name != EOF_KEY}, bool(features[EOF_KEY])
    if isinstance(features, Mapping) and set(features) == {FEATURES_KEY, FLAG_KEY}:
        return features[FEATURES_KEY], bool(features[FLAG_KEY])
    raise ValueError(f"EofAwareTask: batch has no flag {EOF_KEY!r}; read batches from its own input_fn")


def _read_ahead(source: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    batches = iter(source)
    nothing = object()
    batch = next(batches, nothing)
    while batch is not nothing:
        following = next(batches, nothing)
        yield _flagged(batch, following is nothing)
        batch = following
