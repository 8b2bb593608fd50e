"""The gate: thresholds on labelled examples that a version must meet before it answers requests."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from monolith.config import Config, config
from monolith.errors import InvalidArgumentError, OpError
from monolith.export import DEFAULT_SIGNATURE, Signature
from monolith.files import named_errors
from monolith.metrics import Calibration, ExactAUC
from monolith.serving.request import TypedColumns, fit
from monolith.serving.server.config import LimitsConfig
from monolith.serving.server.http.json_request import parse_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from monolith.serving.loaded_model import WithWeights
    from monolith.serving.served_model import ServedModel


@config
class GateConfig(Config):
    """Requirements for a version. NaN and infinities are always rejected; a field of None is not checked."""

    examples: str
    """File of labelled examples, JSON lines: the columns of a request, and a label of 0 or 1."""
    label: str = "label"
    """Name of the label in a line."""
    signature: str = DEFAULT_SIGNATURE
    output: str | None = None
    """Name of the output to judge; None: the only one."""
    min_auc: float | None = None
    max_auc_fall: float | None = None
    """Maximum decrease of the AUC relative to the currently served version."""
    min_calibration: float | None = None
    """Minimum of mean prediction / mean label."""
    max_calibration: float | None = None

    def __post_init__(self) -> None:
        for name, high in (("min_auc", 1), ("max_auc_fall", 1), ("min_calibration", None), ("max_calibration", None)):
            value = getattr(self, name)
            if value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= (math.inf if high is None else high) or math.isinf(value):
                allowed = ">= 0" if high is None else f"from 0 to {high}"
                raise ValueError(f"GateConfig: {name} must be {allowed}, got {value!r}")
        low, high_end = self.min_calibration, self.max_calibration
        if low is not None and high_end is not None and low > high_end:
            raise ValueError(f"GateConfig: min_calibration {low} is above max_calibration {high_end}")


class Figures(NamedTuple):
    """Metrics of a version."""

    auc: float
    calibration: float
    """Mean prediction / mean label."""
    not_finite: int
    """Number of outputs that are NaN or infinite; AUC and calibration are NaN if there are any."""
    examples: int

    def __str__(self) -> str:
        if self.not_finite:
            return f"{self.not_finite} outputs that are NaN or infinite, in {self.examples} examples"
        return f"AUC {self.auc:.6g}, calibration {self.calibration:.6g}, {self.examples} examples"

    def to_json(self) -> dict[str, Any]:
        """Returns plain values; NaN becomes null, since JSON has no NaN."""
        return {name: value if math.isfinite(value) else None for name, value in self._asdict().items()}


class GateVerdict(NamedTuple):
    """Decision of the gate."""

    figures: Figures
    against: Figures | None
    """Metrics of the served version."""
    refused: str | None
    """Why the version must not be served; None: it may be."""


Judged: TypeAlias = "ServedModel | WithWeights"
_NOTHING = Figures(math.nan, math.nan, 0, 0)


class PromotionGate:
    """Check of versions against labelled examples. Thread-safe.

    Args:
        options: Requirements.
        examples: Labelled examples to predict.
        on_verdict: Called with the kind, ``export`` or ``dense``, and each verdict.

    Raises:
        InvalidArgumentError: the examples do not suffice for a requirement, for example if all have the same label.
    """

    def __init__(
        self,
        options: GateConfig,
        examples: LabelledExamples,
        *,
        on_verdict: Callable[[str, GateVerdict], None] | None = None,
    ) -> None:
        self.options = options
        self.on_verdict = on_verdict
        self._examples = examples
        share = float(examples.labels.mean())
        asks_auc = options.min_auc is not None or options.max_auc_fall is not None
        asks_calibration = options.min_calibration is not None or options.max_calibration is not None
        if (asks_auc and share in (0.0, 1.0)) or (asks_calibration and share == 0.0):
            raise InvalidArgumentError(
                f"{examples.origin}: all labels are {share:g}, but the gate checks AUC or calibration; give examples"
                " with both labels"
            )

    @classmethod
    def from_file(cls, path: str) -> PromotionGate:
        """Creates a gate from a file: TOML or JSON with the fields of `GateConfig`.

        Paths in it are relative to its folder.

        Raises:
            NotFoundError: the file, or its file of examples, does not exist.
            InvalidArgumentError: the file or the examples are invalid.
        """
        with named_errors(path, "read"):
            text = Path(path).read_text(encoding="utf-8")
        try:
            options = GateConfig.from_dict(dict(json.loads(text) if path.endswith(".json") else tomllib.loads(text)))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"gate '{path}': {error}") from None
        examples = LabelledExamples.read(str(Path(path).parent / options.examples), options.label)
        return cls(options, examples)

    def judge(self, model: Judged, *, kind: str, against: Judged | None = None) -> GateVerdict:
        """Judges whether a model may be served.

        Args:
            model: The candidate.
            kind: ``export`` or ``dense``.
            against: The currently served model; used only if `max_auc_fall` is set.
        """
        served: Figures | None = None
        if against is not None and self.options.max_auc_fall is not None:
            served = self._figures(against)[0]  # without a score it sets no bound
        figures, problem = self._figures(model)
        verdict = GateVerdict(figures, served, problem or self._problem_of(figures, served))
        if self.on_verdict is not None:
            self.on_verdict(kind, verdict)
        return verdict

    def _figures(self, model: Judged) -> tuple[Figures, str | None]:
        """Returns the metrics, and why there are none."""
        name = self.options.signature
        signature = model.signatures.get(name)
        if signature is None:
            return _NOTHING, f"it has no signature {name!r}, which the gate calls; it has {', '.join(model.signatures)}"
        scores: list[Tensor] = []
        not_finite = 0
        try:
            for columns in self._examples.batches(signature):
                outputs = model.predict(columns, name).outputs
                not_finite += sum(int((~torch.isfinite(values)).sum()) for values in outputs.values())
                scores.append(self._score_of(outputs))
            labels = self._examples.labels
            if not_finite:
                return Figures(math.nan, math.nan, not_finite, len(labels)), None
            auc, calibration = ExactAUC(), Calibration()
            for metric in (auc, calibration):
                metric.update(torch.cat(scores), labels)
            return Figures(auc.compute(), calibration.compute(), 0, len(labels)), None
        except OpError as error:
            return _NOTHING, f"{self._examples.origin} cannot be scored: {error.message}"
        except Exception as error:  # noqa: BLE001 - a version that raises is not served
            return _NOTHING, f"{self._examples.origin} cannot be scored: {type(error).__name__}: {error}"

    def _score_of(self, outputs: Mapping[str, Tensor]) -> Tensor:
        output = self.options.output
        if output is None and len(outputs) == 1:
            output = next(iter(outputs))
        if output is None or output not in outputs:
            problem = "the gate names no output" if output is None else f"there is no output {output!r}"
            raise InvalidArgumentError(f"{problem}; outputs are: {', '.join(outputs)}")
        return outputs[output].reshape(-1)

    def _problem_of(self, figures: Figures, served: Figures | None) -> str | None:
        options = self.options
        if figures.not_finite:
            return str(figures)
        if options.min_auc is not None and not figures.auc >= options.min_auc:
            return f"AUC {figures.auc:.6g} is below {options.min_auc:g} ({figures})"
        if options.max_auc_fall is not None and served is not None and figures.auc < served.auc - options.max_auc_fall:
            return (
                f"AUC {figures.auc:.6g} is more than {options.max_auc_fall:g} below the {served.auc:.6g} of what is"
                f" served ({figures})"
            )
        if options.min_calibration is not None and not figures.calibration >= options.min_calibration:
            return f"calibration {figures.calibration:.6g} is below {options.min_calibration:g} ({figures})"
        if options.max_calibration is not None and not figures.calibration <= options.max_calibration:
            return f"calibration {figures.calibration:.6g} is above {options.max_calibration:g} ({figures})"
        return None


MOST_EXAMPLES = 100_000
"""Maximum number of examples of a file, since they are scored for each export and each set of dense weights."""
MOST_BYTES = 256 << 20
"""Maximum size of a file."""
_AT_A_TIME = 256
"""Examples per call of a model; small, so that requests are served in between."""


@dataclass(frozen=True, slots=True)
class LabelledExamples:
    """Examples in the form of requests, with their labels."""

    rows: list[dict[str, Any]]
    labels: Tensor
    """float32 ``[n]``: 0 or 1."""
    origin: str

    @classmethod
    def read(cls, path: str, label: str) -> LabelledExamples:
        """Reads the examples of a file: a line is an object as in ``instances``, with a label in addition."""
        origin = f"examples '{path}'"
        with named_errors(path, "read"):
            size = Path(path).stat().st_size
            if size > MOST_BYTES:
                raise InvalidArgumentError(f"{origin}: may have {MOST_BYTES} bytes, got {size}; take a sample")
            lines = Path(path).read_bytes().splitlines()
        rows: list[dict[str, Any]] = []
        labels: list[float] = []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                row, value = _parsed(line, label, place=f"{origin}, line {number}")
                rows.append(row)
                labels.append(value)
        if not 0 < len(rows) <= MOST_EXAMPLES:
            raise InvalidArgumentError(f"{origin}: must have from 1 to {MOST_EXAMPLES} examples, got {len(rows)}")
        return cls(rows, torch.tensor(labels), origin)

    def batches(self, signature: Signature) -> Iterator[TypedColumns]:
        """Yields columns for a signature, in batches."""
        for begin in range(0, len(self.rows), _AT_A_TIME):
            rows = self.rows[begin : begin + _AT_A_TIME]
            instances = [{name: value for name, value in row.items() if name in signature.inputs} for row in rows]
            columns = parse_request(json.dumps({"instances": instances}).encode(), LimitsConfig()).columns(signature)
            yield fit(columns, signature, max_examples=_AT_A_TIME)


def _parsed(line: bytes, label: str, *, place: str) -> tuple[dict[str, Any], float]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{place}: must be a JSON object: {error}") from None
    if not isinstance(row, dict) or label not in row:
        raise InvalidArgumentError(f"{place}: must be a JSON object with the label under {label!r}")
    value = row[label]
    if isinstance(value, bool) or value not in (0, 1):
        raise InvalidArgumentError(f"{place}: the label {label!r} must be 0 or 1, got {value!r}")
    return row, float(value)
