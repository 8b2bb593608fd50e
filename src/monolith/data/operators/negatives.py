"""Negatives made of positives: the user's side of a sample with the item's side of another item."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith.config import Config, config, require_at_least, require_between
from monolith.data.batch import Batch
from monolith.data.operators.add_label import check_actions
from monolith.data.operators.column_access import (
    column_of,
    describe_column,
    ids_of,
    labels_of,
    rows_with_any,
    top_ranks,
)
from monolith.data.operators.item_pool import Draws, ItemPool, PoolConfig
from monolith.data.operators.row_draws import DEFAULT_KEYS, row_keys, uniform_draws
from monolith.data.rows import concat_batches, take_rows
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data.batch import ColumnValues

SAMPLED = "negative_sampled"
"""Column: 1 for a negative that was made, 0 for a sample that was read; float32 [B]."""
SAMPLED_FREQUENCY = "negative_frequency"
"""Column: 1 / how often the item had been drawn by then; 1 for a sample that was read."""
LOG_Q = "negative_log_q"
"""Column: natural logarithm of the probability with which the item was drawn; 0 for a sample that was read. Subtract it
from the logit of a sampled softmax."""

_ONLY_CHANNEL = 3  # that of ByteDance Monolith, so that its pool files can be read


@config
class Positives(Config):
    """Which rows are positive, and what a negative made of one looks like."""

    label_index: int = 0
    positive_label: float = 1.0
    """A row with this label is positive, unless `actions` are given."""
    negative_label: float = 0.0
    """Becomes the label of a negative that is made."""
    actions: tuple[int, ...] = ()
    """A row whose first action by `action_priority` is one of these is positive, whatever its label."""
    action_priority: tuple[int, ...] = ()
    """By default a row with any of the actions is positive."""
    negative_action: int | None = None
    """Becomes the only action of a negative that is made."""
    label: str = "label"

    def __post_init__(self) -> None:
        require_at_least(self, 0, "label_index")
        for name in ("actions", "action_priority"):
            object.__setattr__(self, name, check_actions(self, name, getattr(self, name)))

    def of(self, batch: Batch) -> Tensor:
        """Returns which rows are positive, bool [B]."""
        if not self.actions:
            labels = labels_of(batch, self.label, self, width=self.label_index + 1)
            return labels[:, self.label_index] == self.positive_label
        actions = ids_of(batch, "actions", self)
        if not self.action_priority:
            return rows_with_any(actions, torch.tensor(sorted(self.actions)))
        ranks = top_ranks(actions, torch.tensor(self.action_priority))
        return torch.tensor([*(action in self.actions for action in self.action_priority), False])[ranks.cpu()]


@config
class NegativeWeights(Config):
    """The column ``instance_weight`` of what comes out; positives weigh 1."""

    real: float = 1.0
    """Weight of negatives that were read."""
    sampled: float = 0.0
    """Weight of negatives that were made; up to 1e-5 it counts as not given."""
    unbias: bool = False
    """If `sampled` is not given: 1 + number of negatives * age ** decay / times drawn, instead of 1. The age is
    1 for the newest item of the pool and near 0 for the oldest."""
    decay: float = 1.0

    def __post_init__(self) -> None:
        require_at_least(self, 0, "real", "sampled")

    def of_sampled(self, draws: Draws, num_negatives: int) -> Tensor:
        """Returns the weights of sampled negatives, float32 [n]."""
        if self.sampled > 1e-5:
            return torch.full((len(draws.ids),), float(self.sampled))
        if not self.unbias:
            return torch.ones(len(draws.ids))
        weights = 1 + num_negatives * draws.ages**self.decay / draws.draw_counts
        return torch.from_numpy(weights.astype(np.float32))


@config
class PoolEntry(Config):
    """Which rows bring their item into the pool. Positives always do."""

    only_positives: bool = False
    """Skips the items of all other rows, except those with one of the `negative_actions`."""
    negative_actions: tuple[int, ...] = ()
    negative_share: float = 1.0
    """Share of the rows that are not positive whose item enters."""

    def __post_init__(self) -> None:
        require_between(self, 0.0, 1.0, "negative_share")
        actions = check_actions(self, "negative_actions", self.negative_actions)
        object.__setattr__(self, "negative_actions", actions)

    def of(self, batch: Batch, positive: Tensor, chances: Tensor) -> Tensor:
        """Returns which rows' items enter the pool, bool [B]; `chances` are numbers in [0, 1)."""
        enters = torch.full_like(positive, not self.only_positives)
        if self.negative_actions:
            enters |= rows_with_any(ids_of(batch, "actions", self), torch.tensor(sorted(self.negative_actions)))
        return positive | (enters & (chances < self.negative_share))


@config
class NegativeSampling(Config):
    """How negatives are made; the defaults are those of ByteDance Monolith's ``dataset.negative_gen``."""

    items: tuple[str, ...] = field(kw_only=False)
    """The columns that belong to an item and are replaced by those of the item that is drawn."""
    num_negatives: int = 1
    """Negatives that are made for each positive."""
    item_id: str = "item_id"
    """Column of the item's id: one number for each row, or a list of which the first counts."""
    channel: str | None = None
    """Column of the channel, likewise; rows of channel 0 neither enter the pool nor get negatives. None: all rows share
    one channel."""
    easy_share: float = 0.0
    """Share of the draws that are from any channel, in proportion to its size, instead of from the row's own."""
    alpha: float = 0.0
    """Items are drawn in proportion to the power `alpha` of how often they were seen; 0 is uniformly over the items."""
    keep: str = "all"
    """Which of the samples that were read come out: ``"all"``, ``"positives"`` or ``"none"``."""
    positives: Positives = field(default_factory=Positives)
    entry: PoolEntry = field(default_factory=PoolEntry)
    weights: NegativeWeights = field(default_factory=NegativeWeights)
    limits: PoolConfig = field(default_factory=PoolConfig)
    seed: int = 0
    keys: tuple[str, ...] = DEFAULT_KEYS
    """Columns that decide what is drawn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(self.items))
        object.__setattr__(self, "keys", tuple(self.keys))
        require_at_least(self, 0, "num_negatives")
        require_between(self, 0.0, 1.0, "easy_share")
        require_between(self, -4.0, 4.0, "alpha")
        if self.keep not in {"all", "positives", "none"}:
            raise ValueError(f"NegativeSampling: keep must be 'all', 'positives' or 'none', got {self.keep!r}")


class NegativeGen:
    """Puts negatives in front of each positive, and fills the pool from the rows that pass. A callable with a state.

    All items of a batch enter the pool before anything is drawn for it. A positive whose channel is not ready gets no
    negatives. The item of a negative is never that of its positive; upstream could draw it.

    The state is the pool (`state_dict`). After a prefetch it may be some batches ahead of those in use: this affects no
    sample, only which items are available.

    Args:
        sampling: How negatives are made.
    """

    def __init__(self, sampling: NegativeSampling) -> None:
        self.sampling = sampling
        self.pool = ItemPool(sampling.items, sampling.limits)

    def __call__(self, batch: Batch) -> Batch | None:
        """Returns the samples and their negatives; None if there are none."""
        how = self.sampling
        count = how.num_negatives
        draws = uniform_draws(row_keys(batch, how.keys, self), seed=how.seed, owner=self, count=1 + 3 * count)
        ids, has_id = first_numbers(batch, how.item_id, self)
        channels, usable = torch.full_like(ids, _ONLY_CHANNEL), has_id
        if how.channel is not None:
            channels, has_channel = first_numbers(batch, how.channel, self)
            usable = has_id & has_channel & (channels != 0)
        positive = how.positives.of(batch)
        enters = usable & how.entry.of(batch, positive, draws[:, 0])
        features = Batch({name: column_of(batch, name, self) for name in how.items}, num_rows=batch.num_rows)
        self.pool.push(channels[enters].numpy(), ids[enters].numpy(), take_rows(features, enters))
        parents = (usable & positive).nonzero().view(-1).repeat_interleave(count)
        drawn = self.pool.draw(
            channels[parents].numpy(),
            ids[parents].numpy(),
            draws[usable & positive, 1:].reshape(-1, 3).numpy(),
            easy_share=how.easy_share,
            alpha=how.alpha,
        )
        return self._assembled(batch, positive, parents[torch.from_numpy(drawn.found)], drawn)

    def state_dict(self) -> dict[str, Any]:
        """Returns the pool, as tensors and plain values."""
        return self.pool.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved pool."""
        self.pool.load_state_dict(state)

    def _assembled(self, batch: Batch, positive: Tensor, parents: Tensor, drawn: Draws) -> Batch | None:
        """Samples that are kept and negatives, each negative in front of the row it was made of."""
        count = batch.num_rows
        kept = {"all": torch.ones_like(positive), "positives": positive, "none": torch.zeros_like(positive)}
        rows = kept[self.sampling.keep].nonzero().view(-1)
        order = torch.cat([2 * rows + 1, 2 * parents]).argsort(stable=True)
        if not len(order):
            return None
        ones, zeros = torch.ones(count), torch.zeros(count)
        weights = torch.where(positive, 1.0, float(self.sampling.weights.real))
        recorded = {"instance_weight": weights, SAMPLED: zeros, SAMPLED_FREQUENCY: ones, LOG_Q: zeros}
        # A negative's own columns follow the samples; all others are copied from its parent.
        new = self._columns_of_negatives(batch, parents, drawn)
        old = {name: recorded[name] if name in recorded else batch[name] for name in new}
        both = concat_batches([Batch(old, num_rows=count), Batch(new, num_rows=len(parents))])
        own = take_rows(both, torch.cat([rows, count + torch.arange(len(parents))])[order])
        others = Batch({name: values for name, values in batch.items() if name not in new}, num_rows=count)
        shared = take_rows(others, torch.cat([rows, parents])[order])
        columns = {name: own[name] if name in new else shared[name] for name in batch}
        return Batch({**columns, **own}, num_rows=len(order))

    def _columns_of_negatives(self, batch: Batch, parents: Tensor, drawn: Draws) -> Mapping[str, ColumnValues]:
        rule = self.sampling.positives
        columns: dict[str, ColumnValues] = {
            # Before the first item is pushed the pool has no columns; nothing was drawn then, either.
            name: drawn.features[name] if name in drawn.features else take_rows(batch, parents)[name]
            for name in self.sampling.items
        }
        ids = torch.from_numpy(drawn.ids)
        lengths = torch.ones_like(ids)
        is_list = isinstance(batch[self.sampling.item_id], Ragged)
        columns[self.sampling.item_id] = Ragged.from_lengths(ids, lengths) if is_list else ids
        labels = labels_of(batch, rule.label, self, width=rule.label_index + 1)[parents].clone()
        labels[:, rule.label_index] = rule.negative_label
        given = batch[rule.label]
        columns[rule.label] = labels.view(-1) if isinstance(given, Tensor) and given.ndim == 1 else labels
        if rule.negative_action is not None:
            columns["actions"] = Ragged.from_lengths(torch.full_like(ids, rule.negative_action), lengths)
        columns["instance_weight"] = self.sampling.weights.of_sampled(drawn, self.sampling.num_negatives)
        columns[SAMPLED] = torch.ones(len(ids))
        columns[SAMPLED_FREQUENCY] = torch.from_numpy((1 / drawn.draw_counts).astype(np.float32))
        columns[LOG_Q] = torch.from_numpy(drawn.log_q.astype(np.float32))
        return columns


def first_numbers(batch: Batch, name: str, owner: object) -> tuple[Tensor, Tensor]:
    """Returns the number of each row, int64 [B], or the first of its list, and whether it has one, bool [B]."""
    values = column_of(batch, name, owner)
    if isinstance(values, Ragged) and values.dtype == torch.int64 and values.ndim == 2:
        padded = values.to_padded(length=1)[:, 0]
        return padded.cpu(), (values.lengths() > 0).cpu()
    if isinstance(values, Tensor) and values.dtype == torch.int64 and values.ndim in {1, 2} and values[:1].numel() <= 1:
        return values.reshape(-1).cpu(), torch.ones(batch.num_rows, dtype=torch.bool)
    got = describe_column(values)
    raise TypeError(f"{type(owner).__name__}: column {name!r} must be one int64, or a list, for each row, got {got}")
