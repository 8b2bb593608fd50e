"""The stored form of a segment's weights in a serving row, and its effect on training lookups.

Training rows always hold full-precision weights. With ``FixedR8`` and ``OneBit`` a training lookup already returns what
compression will leave of them, so that the model learns around the loss; the other compressors show the raw weights.
Assigning, saving and ``lookup_rows`` always act on the raw weights.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import field, fields
from typing import ClassVar

from monolith.config import Config, config, require_at_least, require_between, require_positive

__all__ = ["Bf16", "Compressor", "FixedR8", "Fp16", "Fp32", "OneBit"]

_SMALLEST_RANGE = 128 * 2.0**-126
"""The step of `FixedR8` is a 128th of its range and has to be a normal float32."""
_LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127


@config
class Compressor(Config, ABC):
    """The stored form of one segment."""

    kind: ClassVar[str]
    """Name of the form in the core and in the schema of a saved table."""

    def kernel(self) -> tuple[str, dict[str, float]]:
        """Returns kind and every parameter of the core's kernel."""
        return self.kind, {f.name: float(getattr(self, f.name)) for f in fields(self)}


@config
class Fp32(Compressor):
    """4 bytes a weight: the weight itself."""

    kind: ClassVar[str] = "fp32"


@config
class Fp16(Compressor):
    """2 bytes a weight: IEEE half precision, to nearest, ties to even; from 65520 on infinite."""

    kind: ClassVar[str] = "fp16"


@config
class Bf16(Compressor):
    """2 bytes a weight: bfloat16, to nearest, ties to even; the range of float32 with 8 bits of precision."""

    kind: ClassVar[str] = "bf16"


@config
class FixedR8(Compressor):
    """1 byte a weight: ``q * r / 128`` with integer ``q`` in [-128, 127]; rounds halves away from zero, NaN gives 0.

    A training lookup returns the rounded weight; the gradient passes to the stored weight unchanged (straight through).

    >>> FixedR8(0.5).kernel()
    ('fixed_r8', {'r': 0.5})
    """

    kind: ClassVar[str] = "fixed_r8"
    r: float = field(default=1.0, kw_only=False)
    """Range: weights outside [-r, r * 127/128] are served as its ends. Choose it just above the largest weight."""

    def __post_init__(self) -> None:
        require_between(self, _SMALLEST_RANGE, _LARGEST_FLOAT32, "r")


@config
class OneBit(Compressor):
    """1 byte a weight: ``amplitude`` for weights above 0, ``-amplitude`` for all others (HashNet, Cao et al. 2017).

    A training lookup at global step ``t`` returns ``amplitude * tanh(scale * w)``, and the gradient is multiplied by
    the slope of that, so pass ``step`` to ``lookup`` and ``apply_gradients``. The scale grows with the step and hardens
    the curve towards the sign: ``scale = min(max_scale, init_scale * sqrt(1 + 0.005 * s))``, ``s`` being the newest
    multiple of ``step_size`` at or below ``t``.
    """

    kind: ClassVar[str] = "one_bit"
    step_size: int = 200
    """Steps between two changes of the scale, >= 1."""
    init_scale: float = 1.0
    """Scale at step 0."""
    max_scale: float = 10000.0
    """Where the scale stops growing, >= init_scale."""
    amplitude: float = 0.05
    """Size of a served weight. The default of ByteDance Monolith's front end; upstream's schema has 0.1."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "step_size")
        require_positive(self, "init_scale", "max_scale", "amplitude")
        require_between(self, self.init_scale, _LARGEST_FLOAT32, "max_scale")
        require_between(self, 2.0**-126, _LARGEST_FLOAT32, "amplitude")
