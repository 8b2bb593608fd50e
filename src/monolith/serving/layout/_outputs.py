"""The outputs of a layout: the feature slices that they consist of, and their memory layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from monolith.data.protos.example_pb2 import FeatureConfigs, OutConfig, OutType
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.export import FeatureSpec

_CONCAT, _STACK, _ADDN, _NONE = OutType.CONCAT, OutType.STACK, OutType.ADDN, OutType.NONE


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Floats [start, end) of the rows of a feature."""

    feature: int
    start: int
    end: int

    @property
    def dim(self) -> int:
        """Number of floats."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LayoutOutput:
    """One tensor of the result."""

    name: str
    form: int
    """CONCAT, STACK or ADDN."""
    cuts: tuple[RowSlice, ...]
    shape: tuple[int, ...]
    """Shape of one example."""

    @property
    def width(self) -> int:
        """Number of floats of one example."""
        return math.prod(self.shape)

    def for_core(self) -> tuple[int, list[tuple[int, int, int]]]:
        """Converts the output for the core."""
        return self.form, [(cut.feature, cut.start, cut.end) for cut in self.cuts]


def outputs_of_features(features: Sequence[FeatureSpec]) -> list[LayoutOutput]:
    """Returns one output for each feature, with its complete rows."""
    return [
        LayoutOutput(feature.name, _CONCAT, (RowSlice(number, 0, feature.dim),), feature.shape)
        for number, feature in enumerate(features)
    ]


def outputs_of_configs(features: Sequence[FeatureSpec], configs: FeatureConfigs) -> list[LayoutOutput]:
    """Returns the outputs of `out_configs`, in the order of their names. Type NONE becomes an output for each slice."""
    outputs: list[LayoutOutput] = []
    for name in sorted(configs.out_configs):
        config = configs.out_configs[name]
        cuts = _cuts_of(name, config, features)
        own = (
            [_output(f"{name}/{place}", _CONCAT, (cut,), features) for place, cut in enumerate(cuts)]
            if config.out_type == _NONE
            else [_output(name, config.out_type, cuts, features)]
        )
        _check_shapes(name, config, own)
        outputs += own
    return outputs


def _cuts_of(name: str, config: OutConfig, features: Sequence[FeatureSpec]) -> tuple[RowSlice, ...]:
    numbers = {feature.name: number for number, feature in enumerate(features)}
    if not config.slice_configs:
        raise InvalidArgumentError(f"output {name!r}: it has no slices")
    cuts = []
    for part in config.slice_configs:
        if part.feature_name not in numbers:
            raise InvalidArgumentError(f"output {name!r}: there is no feature {part.feature_name!r}")
        number = numbers[part.feature_name]
        if not 0 <= part.start < part.end <= features[number].dim:
            raise InvalidArgumentError(
                f"output {name!r}: feature {part.feature_name!r} has rows of {features[number].dim},"
                f" got the slice [{part.start}, {part.end})"
            )
        cuts.append(RowSlice(number, part.start, part.end))
    return tuple(cuts)


def _output(name: str, form: int, cuts: tuple[RowSlice, ...], features: Sequence[FeatureSpec]) -> LayoutOutput:
    if form not in {_CONCAT, _STACK, _ADDN}:
        raise InvalidArgumentError(f"output {name!r}: out_type must be CONCAT, STACK, ADDN or NONE, got {form}")
    lengths = {num_places(features[cut.feature]) for cut in cuts}
    if len(lengths) > 1:
        raise InvalidArgumentError(
            f"output {name!r}: its slices must all be of sequences of one max_sequence_length, or none of them;"
            f" got lengths {sorted(lengths)}, where 0 is a pooled feature"
        )
    length = lengths.pop()
    dims = [cut.dim for cut in cuts]
    if form == _ADDN and length > 0:
        raise InvalidArgumentError(f"output {name!r}: ADDN adds pooled rows, and FIRSTN makes sequences; use CONCAT")
    if form != _CONCAT and len(set(dims)) > 1:
        raise InvalidArgumentError(f"output {name!r}: slices that are stacked or added have one dim, got {dims}")
    places = (length,) if length > 0 else ()
    if form == _STACK:
        return LayoutOutput(name, form, cuts, (len(cuts), *places, dims[0]))
    return LayoutOutput(name, form, cuts, (*places, dims[0] if form == _ADDN else sum(dims)))


def num_places(feature: FeatureSpec) -> int:
    """Returns the length of the sequences of a feature; 0 for a pooled one."""
    return feature.max_sequence_length if feature.pooling == "firstn" else 0


def _check_shapes(name: str, config: OutConfig, outputs: Sequence[LayoutOutput]) -> None:
    """Checks the declared shapes; the batch dimension is not declared, or any number."""
    declared = [tuple(shape.dims) for shape in config.shape]
    if declared and [shape[1:] for shape in declared] != [output.shape for output in outputs]:
        raise InvalidArgumentError(
            f"output {name!r}: the declared shapes {declared} are not those of its slices,"
            f" {[(-1, *output.shape) for output in outputs]}"
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent outputs of the same shape."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    first: int
    """Offset of the first float of one example."""
    last: int
    """Offset after the last float of one example."""


def runs_of(outputs: Sequence[LayoutOutput]) -> tuple[Run, ...]:
    """Groups all outputs into runs, in order."""
    runs, first = [], 0
    for shape, group in groupby(outputs, lambda output: output.shape):
        members = list(group)
        last = first + sum(output.width for output in members)
        runs.append(Run(tuple(output.name for output in members), shape, first, last))
        first = last
    return tuple(runs)


def cut_apart(runs: Sequence[Run], floats: Tensor, num_examples: int) -> dict[str, Tensor]:
    """Returns name -> [B, shape], views of the floats of all outputs; a run takes two calls of torch."""
    inputs: dict[str, Tensor] = {}
    for run in runs:
        part = floats if len(runs) == 1 else floats[run.first * num_examples : run.last * num_examples]
        inputs.update(zip(run.names, part.view(len(run.names), num_examples, *run.shape).unbind(), strict=True))
    return inputs
