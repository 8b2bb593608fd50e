"""Several sources in one stream, distinguished by the key of their name."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from monolith.config import config
from monolith.data.operators.column_access import numbers_of
from monolith.data.operators.conditions import Condition, Operator
from monolith.data.records.framing import source_key
from monolith.data.rows import concat_batches, keep_rows, with_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.data.batch import Batch

SOURCE_KEY = "data_source_key"
"""Column of the key, for ``Parser(..., source_key=SOURCE_KEY)``: out of lagrangex headers, or of the messages."""


@config
class FromSource(Condition):
    """Holds for the rows that come from one of the named sources."""

    names: str | tuple[str, ...] = field(kw_only=False)
    """One name may be given as it is."""
    column: str = SOURCE_KEY

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else tuple(self.names)
        object.__setattr__(self, "names", names)
        _keys_of(names)

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        keys = numbers_of(batch, self.column, self)
        return torch.isin(keys, torch.tensor(list(_keys_of(tuple(self.names))), dtype=keys.dtype, device=keys.device))


@config
class NameSources(Operator):
    """Adds the column ``data_source_name``: the name of each row's source, or ``data_source<key>`` of unnamed ones."""

    names: tuple[str, ...] = field(kw_only=False)
    column: str = SOURCE_KEY

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        _keys_of(self.names)

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the column."""
        distinct, which = np.unique(numbers_of(batch, self.column, self).cpu().numpy(), return_inverse=True)
        named = _keys_of(self.names)
        texts = np.array([named.get(key, f"data_source{key}").encode() for key in distinct.tolist()], dtype=object)
        return with_columns(batch, {"data_source_name": list(texts[which]) if len(which) else []})


class ByFlow:
    """Runs another function on the rows of each source, and joins the results, source by source.

    Args:
        functions: Name of a source -> function of its rows: an operator, or any function of a batch. Their results must
            have the same columns.
        others: Function of the rows of all other sources; None: such rows are an error.
        column: Column of the key.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[Batch], Batch | None]],
        *,
        others: Callable[[Batch], Batch | None] | None = None,
        column: str = SOURCE_KEY,
    ) -> None:
        _keys_of(tuple(functions))
        self._functions = dict(functions)
        self._others = others
        self._column = column

    def __call__(self, batch: Batch) -> Batch | None:
        """Returns the batches of all sources, joined; None if no row is left."""
        flows, rest = split_flows(batch, tuple(self._functions), column=self._column)
        if rest is not None and self._others is None:
            key = int(numbers_of(rest, self._column, self)[0])
            raise ValueError(
                f"ByFlow: {rest.num_rows} rows of unknown sources, the first of key {key}; known are "
                f"{', '.join(self._functions)}; set `others` to handle them"
            )
        results = [self._functions[name](rows) for name, rows in flows.items() if rows is not None]
        if rest is not None and self._others is not None:
            results.append(self._others(rest))
        left = [rows for rows in results if rows is not None]
        return concat_batches(left) if left else None


def split_flows(
    batch: Batch, names: tuple[str, ...], *, column: str = SOURCE_KEY
) -> tuple[dict[str, Batch | None], Batch | None]:
    """Returns the rows of each named source, and those of all others; None if there are none."""
    keys = numbers_of(batch, column, "split_flows")
    flows = {name: keep_rows(batch, keys == key) for key, name in _keys_of(names).items()}
    known = torch.tensor([source_key(name) for name in names], dtype=keys.dtype, device=keys.device)
    return flows, keep_rows(batch, ~torch.isin(keys, known))


def _keys_of(names: tuple[str, ...]) -> dict[int, str]:
    keys: dict[int, str] = {}
    for name in names:
        key = source_key(name)
        if key in keys:
            raise ValueError(f"sources {keys[key]!r} and {name!r} cannot be distinguished: both have the key {key}")
        keys[key] = name
    return keys
