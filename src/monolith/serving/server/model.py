"""What the server asks of a model: the interface of `monolith.serving.Predictor`, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.data.text_ids import TextColumn

__all__ = [
    "DEFAULT_SIGNATURE",
    "ENCODED",
    "InputSpec",
    "OutputSpec",
    "Prediction",
    "ServedModel",
    "ShownModel",
    "Signature",
    "Version",
    "is_merged",
]

DEFAULT_SIGNATURE = "serving_default"
"""The signature of a request that names none."""
ENCODED = ("instances", "examples", "example_batch")
"""Names of inputs that carry encoded samples instead of columns: any signature takes them."""


class InputSpec(Protocol):
    """A column of a request."""

    @property
    def kind(self) -> str:
        """``ids`` or ``dense``."""
        ...

    @property
    def dtype(self) -> str:
        """``int64``, ``float32``, ``bytes`` or another one of torch."""
        ...

    @property
    def shape(self) -> tuple[int | None, ...]:
        """None stands for the number of examples, which comes first, and for what differs."""
        ...

    @property
    def ragged(self) -> bool:
        """Whether examples have differing numbers of values."""
        ...

    @property
    def texts(self) -> TextColumn | None:
        """How texts become ids, where a request may have texts instead of ids."""
        ...


class OutputSpec(Protocol):
    """A column of an answer."""

    @property
    def dtype(self) -> str:
        """As torch writes it."""
        ...

    @property
    def shape(self) -> tuple[int | None, ...]:
        """None stands for the number of examples."""
        ...


class Signature(Protocol):
    """One way to ask a model."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Columns by name, each an `InputSpec`."""
        ...

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Columns by name, each an `OutputSpec`."""
        ...


class Version(Protocol):
    """What an answer was made with."""

    @property
    def export(self) -> int:
        """Unix time of the export: the version of the model."""
        ...

    @property
    def dense(self) -> int:
        """Number of the dense part; -1: the export's own."""
        ...

    @property
    def sparse(self) -> dict[str, int]:
        """Part of the delta log to the increment that its rows have at least."""
        ...


class Prediction(Protocol):
    """An answer."""

    @property
    def outputs(self) -> dict[str, Tensor]:
        """By name; the first dim is that of the examples."""
        ...

    @property
    def version(self) -> Any:
        """A `Version`."""
        ...

    @property
    def num_ids(self) -> int:
        """Ids that were looked up."""
        ...

    @property
    def num_found(self) -> int:
        """Those of them that have a row."""
        ...


class ShownModel(Protocol):
    """What is shown of a model by metrics."""

    @property
    def version(self) -> Any:
        """A `Version`: what the next answer would be made with."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it has what training had published, but for a small lag."""
        ...

    @property
    def staleness(self) -> Any:
        """Seconds from an event to its rows here, ``p50`` and ``p99``, and since the newest, ``now``; None: no log."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of all tables."""
        ...

    @property
    def memory_bytes(self) -> int:
        """What they take."""
        ...


class ServedModel(ShownModel, Protocol):
    """A model that answers; every method may be called by any thread."""

    @property
    def name(self) -> str:
        """Of the model, where it is served under no other."""
        ...

    @property
    def signatures(self) -> Mapping[str, Any]:
        """Ways to ask it by name, each a `Signature`."""
        ...

    @property
    def why_not_ready(self) -> str | None:
        """A sentence; None when it is ready."""
        ...

    @property
    def problem(self) -> str | None:
        """Why it does not serve something newer that is there; None where it does."""
        ...

    def predict(self, inputs: Any, signature: str = DEFAULT_SIGNATURE) -> Any:
        """The `Prediction` for columns by name.

        Raises:
            InvalidArgumentError: inputs that do not fit the signature.
            NotFoundError: a signature that it does not have.
        """
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...


def is_merged(model: ServedModel) -> bool:
    """Whether several requests may be one call of a model; one whose answers depend on that has ``answers_alone``."""
    return not getattr(model, "answers_alone", False)
