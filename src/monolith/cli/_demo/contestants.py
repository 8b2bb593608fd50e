"""The contestants: a model that learns online, one that stopped learning, and one whose ids are hashed.

All have the same architecture, the same first weights and the same optimizers, and see the same examples in the same
order. Every example is predicted before it is trained on. A stopwatch measures the stages of the race.
"""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from monolith.data import NUM_CONTEXTS
from monolith.nn import Embeddings, Slice, Slot
from monolith.observe import NARROW_BELOW
from monolith.tables import Adagrad, SlidingHashFilter, Zeros

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.clock import Clock
    from monolith.data import Batch, SyntheticClicks
    from monolith.tables import Applied
    from monolith.tensors import Ragged

    Ids = dict[str, Tensor | Ragged]

TRAFFIC, MEASURING = "making the traffic", "measuring"
PREDICT, BACKWARD, UPDATE = "online: look rows up, predict", "online: backward", "online: update rows and weights"
HASHED, FROZEN = "hashed ids: predict and learn", "frozen: predict"
ONLINE = (PREDICT, BACKWARD, UPDATE)
STAGES = {TRAFFIC: "best", **dict.fromkeys(ONLINE, "online"), HASHED: "hashed", FROZEN: "frozen", MEASURING: "best"}
"""Each stage of a batch, in order, and whose colour it has."""

STYLE = f"""
.stage {{ display: grid; grid-template: "name track amount" / 15rem 1fr 8.5rem; gap: 2px 12px; align-items: center; }}
.stage + .stage {{ margin-top: 8px; }}
.stage .name {{ color: var(--text); grid-area: name; }}
.stage .track {{ grid-area: track; }}
.stage .amount {{ grid-area: amount; text-align: right; font-size: .9rem; font-variant-numeric: tabular-nums; }}
.stage .bar {{ height: 14px; border-radius: 3px; min-width: 2px; }}
@media (max-width: {NARROW_BELOW}px) {{ .stage {{ grid-template: "name amount" "track track" / 1fr max-content; }} }}
"""

SLOTS = ("user", "item", "tags", "context")
USER_DAYS, ITEM_DAYS = 10, 4


class Stopwatch:
    """Adds up what each stage takes: the time since the stage before it ended. Belongs to one thread."""

    def __init__(self, clock: Clock) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Starts the first stage."""
        self._since = self._clock.monotonic()

    def end(self, stage: str) -> None:
        """A stage ends here, and the next one begins."""
        now = self._clock.monotonic()
        self.seconds[stage] += now - self._since
        self._since = now


def bars_of(seconds: dict[str, float], num_examples: int) -> str:
    """Share of the time and microseconds for an example, stage by stage."""
    total = sum(seconds.values())
    if not total or not num_examples:
        return "<p>The run was too short to measure this.</p>"
    longest = max(seconds.values())
    rows = []
    for stage, colour in STAGES.items():
        taken = seconds.get(stage, 0.0)
        amount = f"{taken / total:.0%} &middot; {taken / num_examples * 1e6:.1f} &micro;s"
        bar = f'<div class="bar" style="width:{taken / longest:.1%};background:var(--series-{colour})"></div>'
        rows.append(
            f'<div class="stage"><div class="name">{escape(stage)}</div><div class="track">{bar}</div>'
            f'<div class="amount">{amount}</div></div>'
        )
    return "".join(rows)


class Online:
    """A row for every id that returns; rows of ids that left are dropped."""

    def __init__(self, seed: int, stage_ends: Callable[[str], None] = lambda _: None) -> None:
        self.model = _model_with_own_rows(seed)
        self._stage_ends = stage_ends
        self.inserted = 0
        """Rows that came into being so far."""
        self.kept_out = 0
        """Ids that were met and got no row, counted at each batch."""

    def judge(self, batch: Batch) -> Tensor:
        """Returns logits [B] from before the batch was learned from, then learns."""
        time = cast("Tensor", batch["req_time"])
        logits, applied = self.model.learn(_ids(batch), _clicks(batch), time, stage_ends=self._stage_ends)
        self.inserted += applied.inserted
        self.kept_out += applied.filtered
        return logits


class Frozen:
    """A copy of another model that never learns again."""

    def __init__(self, online: Online, seed: int) -> None:
        self.model = _model_with_own_rows(seed).eval()
        self.model.take_over(online.model)

    @torch.no_grad()
    def judge(self, batch: Batch) -> Tensor:
        """Predicts, and learns nothing."""
        logits: Tensor = self.model(_ids(batch))
        return logits


class Hashed:
    """Ids of users and items modulo the size of one array; tags and contexts, of which there are few, have own rows.

    Args:
        memory_bytes: Of all rows, with the optimizer's state; an array needs neither keys nor an index.
        world: How many tags and contexts there are.
        seed: Of the first weights.
    """

    def __init__(self, memory_bytes: int, world: SyntheticClicks, seed: int) -> None:
        self.num_rows = memory_bytes // BYTES_PER_BARE_ROW - world.num_tags - NUM_CONTEXTS
        """Rows that users and items share."""
        slots = {
            "user": Slot(slices=ROW),
            "item": Slot(shares="user"),
            "tags": Slot(slices=ROW, combiner="mean"),
            "context": Slot(slices=ROW),
        }
        self.model = ClickModel(slots, seed=seed)

    def judge(self, batch: Batch) -> Tensor:
        """Predicts, then learns."""
        ids = _ids(batch)
        for name in ("user", "item"):
            ids[name] = cast("Tensor", ids[name]) % self.num_rows
        return self.model.learn(ids, _clicks(batch), None)[0]


def _model_with_own_rows(seed: int) -> ClickModel:
    slots = {
        "user": Slot(slices=ROW, min_count=1, expire_days=USER_DAYS),
        "item": Slot(slices=ROW, expire_days=ITEM_DAYS),
        "tags": Slot(slices=ROW, combiner="mean"),
        "context": Slot(slices=ROW),
    }
    return ClickModel(slots, seed=seed)


def _ids(batch: Batch) -> Ids:
    return {name: cast("Tensor | Ragged", batch[name]) for name in SLOTS}


def _clicks(batch: Batch) -> Tensor:
    return cast("Tensor", batch["label"]).view(-1)


DIM = 16
"""Dimension of the vectors; a row has a bias, too."""
BYTES_PER_BARE_ROW = 2 * 4 * (1 + DIM)
"""Of an array: weights and Adagrad's sums, no keys, no index."""
ROW = (Slice(1, initializer=Zeros()), Slice(DIM))


class ClickModel(nn.Module):
    """Logits of clicks from the ids of four slots.

    Args:
        slots: Name -> slot of `ROW` slices.
        seed: Of the first weights.
    """

    def __init__(self, slots: Mapping[str, Slot], *, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.deep = nn.Sequential(nn.Linear(len(slots) * DIM, 32), nn.ReLU(), nn.Linear(32, 1))
        # The filter is as small as filters get: it has to remember some days of visitors.
        self.embeddings = Embeddings(
            slots,
            Adagrad(learning_rate=0.2, initial_accumulator_value=1e-8),
            seed=seed,
            admission=SlidingHashFilter(capacity=100_000),
        )
        self._dense_optimizer = torch.optim.Adam(self.deep.parameters(), lr=1e-3)

    def forward(self, ids: Mapping[str, Tensor | Ragged], time: Tensor | None = None) -> Tensor:
        """Logits [B]; `time` int64 [B] is when the examples were seen."""
        rows = self.embeddings(ids, time=time).stack()  # [B, slots, 1 + DIM]
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits: Tensor = bias.sum(1) + pairs + self.deep(vectors.flatten(1)).squeeze(1)
        return logits

    def learn(
        self,
        ids: Mapping[str, Tensor | Ragged],
        clicks: Tensor,
        time: Tensor | None,
        *,
        stage_ends: Callable[[str], None] = lambda _: None,
    ) -> tuple[Tensor, Applied]:
        """Predicts, then makes one step from what was predicted; returns the prediction, which saw no click of it."""
        logits = self(ids, time)
        stage_ends(PREDICT)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        self._dense_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        stage_ends(BACKWARD)
        self._dense_optimizer.step()
        applied = self.embeddings.step()
        stage_ends(UPDATE)
        return logits.detach(), applied

    def take_over(self, other: ClickModel) -> None:
        """Becomes an exact copy of a model that was built alike: weights, rows, and what the optimizers remember."""
        self.load_state_dict(other.state_dict())
