"""`Dataset.split`: one stream cut into parts that share no row, such as one to train and one to test on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.data.batch import Batch
from monolith.data.pipeline.draws import key_of, mix
from monolith.data.pipeline.stage import Stage, StageReading, StageSource
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.data.rows import has_rows, num_rows_of, select_rows
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from monolith.data.reading import Reading

_KIND = "split"


def check_ratios(name: str, ratios: Sequence[float]) -> list[float]:
    """Returns shares that add up to 1, in proportion to the ratios."""
    numbers = [float(ratio) for ratio in ratios]
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise ValueError(f"{name}: ratios must be positive numbers, at least one, got {list(ratios)}")
    return [number / sum(numbers) for number in numbers]


class Split(Stage[Any, Any]):
    """The rows of one part.

    Args:
        ratios: The share of each part.
        part: Which part this is, from 0 on.
        seed: Seed of the split; the same seed gives the same split.
        by: A column of numbers or ids: rows with the same (first) value go to the same part, whatever their order.
            None: by the index of a row in the stream, so the source must not change its order between epochs.
    """

    def __init__(self, ratios: Sequence[float], part: int, *, seed: int = 0, by: str | None = None) -> None:
        shares = np.cumsum([0.0, *check_ratios("split", ratios)])
        self._low, self._high = float(shares[part]), float(shares[part + 1]) if part + 1 < len(ratios) else 1.0
        self._seed = seed
        self._by = by
        self.works_on_shares = by is not None  # an index in the stream is only known to a reader of all of it

    def read(self, source: StageSource[Any], position: bytes | None) -> Reading[Any]:
        """Starts a reading; its position is that of the source, and how many rows it had up to there."""
        if position is None:
            return _SplitReading(source.read(), self, 0)
        saved = SavedPosition(position, _KIND).require_same(seed=self._seed, by=self._by)
        return _SplitReading(source.read(saved.position("source")), self, saved.number("rows"))

    def identity(self) -> dict[str, Any]:
        """Returns what a position must have been saved with."""
        return {"by": self._by, "seed": self._seed}

    def rows_of(self, element: Any, first_row: int) -> npt.NDArray[np.int64]:
        """Returns the numbers of the element's rows that belong to this part."""
        numbers = self._values_of(element) if self._by is not None else _places(element, first_row)
        draws = mix(mix(numbers.view(np.uint64)) ^ key_of(self._seed, 1)) >> np.uint64(11)
        shares = draws.astype(np.float64) * 2.0**-53
        return np.flatnonzero((shares >= self._low) & (shares < self._high))

    def _values_of(self, element: Any) -> npt.NDArray[np.int64]:
        if not isinstance(element, Batch):
            raise TypeError(f"split: by={self._by!r} is for elements that are a Batch, got a {type(element).__name__}")
        values = element[str(self._by)]
        if isinstance(values, Ragged):
            values = values.to_padded(length=1)
        if not isinstance(values, torch.Tensor) or values.is_floating_point() or values.shape[1:].numel() != 1:
            raise TypeError(f"split: column {self._by!r} must have one integer or id in each row")
        numbers: npt.NDArray[np.int64] = values.reshape(-1).to(torch.int64).numpy(force=True)
        return np.ascontiguousarray(numbers)

    def __repr__(self) -> str:
        by = "" if self._by is None else f", by={self._by!r}"
        return f"split({self._low:.3g} to {self._high:.3g}{by})"


class _SplitReading(StageReading[Any, Any]):
    def __init__(self, source: Reading[Any], split: Split, rows: int) -> None:
        super().__init__(source)
        self._split = split
        self._rows = rows

    @property
    def position(self) -> bytes:
        source = nested(super().position)
        return encode_position(_KIND, {**self._split.identity(), "rows": self._rows, "source": source})

    def __next__(self) -> Any:
        while True:
            element = next(self._source)
            rows = self._call(self._choose, element)
            self._rows += num_rows_of(element)
            if len(rows):
                return select_rows(element, rows) if has_rows(element) else element

    def _choose(self, element: Any) -> npt.NDArray[np.int64]:
        return self._split.rows_of(element, self._rows)


def _places(element: object, first_row: int) -> npt.NDArray[np.int64]:
    return np.arange(first_row, first_row + num_rows_of(element), dtype=np.int64)
