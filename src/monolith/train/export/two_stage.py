"""Two-stage models: items are predicted once after training, and served as vectors together with the user tower."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.export import ExportConfig, ExportSource, ModelCall, write_export
from monolith.files import join, open_storage
from monolith.nn import Embeddings, Slice, Slot, TableDefaults, use_table_defaults
from monolith.tables import Fp32, HashTable, Segment, Sgd, TableConfig
from monolith.tables.formats import export_entry_dump
from monolith.tables.local import LocalStore
from monolith.train.export.exporting import first_batch, looked_at
from monolith.train.predict.candidate_items import ITEM_ID
from monolith.train.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from monolith.train.predict.candidate_items import CandidateItems
    from monolith.train.session import Session

CACHE = "MonolithHashTable_cached_item_embeddings"
"""Name of the file with the vectors of items, before ``-00000-of-00001``."""
ITEM_CACHE = "item_cache"
"""Folder of the item cache in the model directory."""
TWO_STAGE = "two_stage"
"""Folder of its exports, next to the others of a run."""
_MODULE = "cached_items"


class ItemVectors(NamedTuple):
    """The item data of the second stage."""

    bias: Tensor
    """Floats [items]."""
    vector: Tensor
    """Floats [items, dim]."""


class TwoStageTask(Task):
    """A task that scores by a vector of the user, and by a bias and a vector of the item.

    `model_fn` trains both: ``self.score_fn(self.user_fn(features), self.item_fn(features))``. After training the
    candidate items of the run are predicted once, and exported with the tower of users.
    """

    def item_columns(self) -> Sequence[str]:
        """Returns the columns that `item_fn` reads: ``fc_slot_<slot>``."""
        raise NotImplementedError(f"{type(self).__name__}: write item_columns(self), the columns that item_fn reads")

    def user_fn(self, features: Any) -> Tensor:
        """Returns the vectors of users, floats [B, dim]."""
        raise NotImplementedError(f"{type(self).__name__}: write user_fn(self, features), the vectors of users")

    def item_fn(self, features: Any) -> ItemVectors:
        """Bias and vector of items."""
        raise NotImplementedError(f"{type(self).__name__}: write item_fn(self, features), which gives ItemVectors")

    def score_fn(self, user: Tensor, item: ItemVectors) -> Tensor:
        """Returns the scores of users and items, [B]: the product of their vectors, and the bias."""
        return (user * item.vector).sum(1) + item.bias


class CachedItems(NamedTuple):
    """The item cache table."""

    ids: Tensor
    """int64 [items], each once."""
    values: Tensor
    """float32 [items, 1 + dim]: the bias, then the vector."""


def cache_items(session: Session, items: CandidateItems) -> CachedItems:
    """Predicts all candidate items."""
    task = _task_of(session)
    model = nn.Module() if session.state.model is None else session.state.model
    ids, values = [], []
    with looked_at(model), torch.no_grad():
        for batch in items.batches(task.item_columns()):
            numbers = batch[ITEM_ID]
            assert isinstance(numbers, torch.Tensor)  # noqa: S101 - `CandidateItems` makes them
            ids.append(numbers)
            values.append(_checked(task.item_fn(batch), numbers))
    if not ids:
        raise InvalidArgumentError("candidate items: there are none; check the path")
    cached = CachedItems(torch.cat(ids), torch.cat(values))
    distinct, counts = np.unique(cached.ids.numpy(), return_counts=True)
    if len(distinct) != len(cached.ids):
        raise InvalidArgumentError(f"candidate items: item {distinct[counts > 1][0]} occurs twice; give each item once")
    return cached


def write_item_cache(items: CachedItems, folder: str) -> str:
    """Writes the table in ByteDance Monolith's dump format to one file, replacing an older one; returns its path."""
    table = HashTable(TableConfig([Segment(items.values.shape[1], optimizer=Sgd())], name="cached_item_embeddings"))
    table.assign(items.ids, items.values)
    with tempfile.TemporaryDirectory() as temporary:
        (written,) = export_entry_dump(table, Path(temporary) / CACHE, num_shards=1)
        storage = open_storage(folder)
        storage.make()
        storage.remove_abandoned()
        storage.remove(f"{written.name}.tmp")  # of an older version that was killed
        storage.put(written.name, written)
    return join(folder, written.name)


def export_two_stage(
    session: Session, items: CachedItems, path: str, *, example: Any = None, options: ExportConfig | None = None
) -> str:
    """Exports the user tower with the item cache table: requests have the columns of users and ``item_id``.

    Embedding tables that the user tower does not read are omitted.

    Returns:
        The folder of the version.
    """
    task, state = _task_of(session), session.state
    example = first_batch(task) if example is None else example
    columns = dict(example)
    num_rows = len(next(iter(columns.values())))
    columns[ITEM_ID] = items.ids[torch.arange(num_rows) % len(items.ids)]
    dim = items.values.shape[1] - 1
    with use_table_defaults(TableDefaults(store=LocalStore)):
        parts = [Slice(1, compressor=Fp32()), Slice(dim, compressor=Fp32())]
        cache = Embeddings({ITEM_ID: Slot(slices=parts)})
    cache.assign(ITEM_ID, items.ids, items.values)
    model = nn.Module() if state.model is None else state.model

    def call(batch: Any) -> object:
        cached = cache({ITEM_ID: batch[ITEM_ID]})[ITEM_ID]
        return task.score_fn(task.user_fn(batch), ItemVectors(cached[:, 0], cached[:, 1:]))

    with _attached(model, cache), looked_at(model):
        source = ExportSource(
            name=str(task.p.name),
            step=session.global_step,
            model=ModelCall(
                model=model, embeddings=state.embeddings, stores=state.stores, model_fn=task.user_fn, call=call
            ),
            stores=state.stores,
            texts=example.texts if isinstance(example, Batch) else {},
            leaves_out_unread=True,
        )
        return write_export(source, path, columns, ExportConfig() if options is None else options)


@contextmanager
def _attached(model: nn.Module, cache: nn.Module) -> Iterator[None]:
    """Makes the cache a part of the model during an export."""
    model.add_module(_MODULE, cache)
    try:
        yield
    finally:
        delattr(model, _MODULE)


def _task_of(session: Session) -> TwoStageTask:
    if not isinstance(session.task, TwoStageTask):
        raise InvalidArgumentError(
            f"task {session.task.p.name}: candidate items are predicted by a TwoStageTask, got"
            f" {type(session.task).__name__}; derive it from monolith.train.TwoStageTask"
        )
    return session.task


def _checked(predicted: ItemVectors, ids: Tensor) -> Tensor:
    bias, vector = predicted
    if tuple(bias.shape) != (len(ids),) or vector.ndim != 2 or len(vector) != len(ids):
        raise InvalidArgumentError(
            f"item_fn: a bias [{len(ids)}] and a vector [{len(ids)}, dim] expected, got {list(bias.shape)} and"
            f" {list(vector.shape)}"
        )
    values = torch.cat([bias.unsqueeze(1), vector], 1).float().cpu()
    bad = ~torch.isfinite(values).all(1)
    if bad.any():
        raise InvalidArgumentError(f"item_fn: item {int(ids[bad][0])} has a bias or vector that is no finite number")
    return values
