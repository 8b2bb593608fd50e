"""`import_saved_model`: an export as a function, under the name used by ByteDance Monolith."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.export.signature import DEFAULT_SIGNATURE
from monolith.serving.predictor import Predictor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from monolith.export.signature import Signature

__all__ = ["import_saved_model"]


@contextmanager
def import_saved_model(
    path: str, input_name: str = "instances", output_name: str | None = None, signature: str | None = None
) -> Iterator[Callable[[Any], Tensor]]:
    """Yields a function that predicts with an export: the newest version below a path.

    Args:
        path: The export, or the folder of all versions.
        input_name: Name of the argument of the function, if it is not a mapping: ``instances``, ``examples`` or
            ``example_batch`` as bytes, or the only column of the signature.
        output_name: Name of the output to return; None: the only output.
        signature: Name of the signature; None: ``serving_default``, else the only one.

    Raises:
        NotFoundError: there is no export, signature or output of that name.
        InvalidArgumentError: there are several outputs, and none is named.
    """
    with Predictor(path) as predictor:
        asked = _signature(predictor.signatures, signature, path)
        wanted = _output(predictor.signatures[asked], output_name, f"export '{path}', signature {asked!r}")

        def call(inputs: Any) -> Tensor:
            given = inputs if isinstance(inputs, Mapping) else {input_name: inputs}
            return predictor.predict(given, asked).outputs[wanted]

        yield call


def _signature(found: Mapping[str, Signature], name: str | None, path: str) -> str:
    wanted = name or (DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in found or len(found) > 1 else next(iter(found)))
    if wanted not in found:
        raise NotFoundError(f"export '{path}': there is no signature {wanted!r}, it has {', '.join(sorted(found))}")
    return wanted


def _output(signature: Signature, name: str | None, subject: str) -> str:
    there = ", ".join(sorted(signature.outputs))
    if name is None and len(signature.outputs) > 1:
        raise InvalidArgumentError(f"{subject}: it answers with {there}; give one as output_name")
    wanted = next(iter(signature.outputs)) if name is None else name
    if wanted not in signature.outputs:
        raise NotFoundError(f"{subject}: there is no output {wanted!r}, it has {there}")
    return wanted
