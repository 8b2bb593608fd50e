"""`RankSteps`: what the ranks of a synchronous run exchange in each step, and what all of them obey.

A step of a rank makes these collective calls, and a rank without a batch follows them::

    reads of rows            one for each module with tables; for a later batch if rows are read ahead
    updates of rows          those that earlier steps have postponed
    forward and backward     reads of rows that were not read ahead
    update                   this file: what any rank refuses, all refuse; gradients of dense weights are averaged
    updates of rows          those of this step, unless they are postponed

Further requests, such as a stop by a signal on one rank or a save by the clock of rank 0, are bits of `update`, so that
all ranks see them at the same step.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith import collective
from monolith.collective import AveragingConfig, Call, LockStep, RaisedByAllError, average_gradients, told
from monolith.collective.sharded import sharded_stores
from monolith.errors import InvalidArgumentError
from monolith.nn import without_rows
from monolith.train._rank_words import RankAgreement, gather_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn import Parameter

    from monolith.checkpoint import TrainState
    from monolith.collective import Agreed, LineCall
    from monolith.collective.sharded import ShardedStore

UPDATE = "update"
"""Kind of the call that ends what a step computes."""
_REFUSED, _STOP, _FIRST_WISH = 1, 2, 4
_TEXT_BYTES = 1024
"""Maximum bytes of the reason of a refused step."""


class RankUpdate(NamedTuple):
    """Content of a step, which must be the same on all ranks."""

    reached: int
    """The global step after it."""
    num_pushes: int
    """Updates of rows that come with it."""
    has_dense: bool
    """Whether gradients of dense weights are averaged."""

    def to_bytes(self) -> bytes:
        """Serializes the update for ranks that follow."""
        return json.dumps(list(self)).encode()

    @classmethod
    def of(cls, text: bytes) -> RankUpdate:
        """Parses an update."""
        return cls(*json.loads(text))


class CollectiveFlag:
    """Something that one rank may want to happen on all of them at the same step."""

    def __init__(self, asks: Callable[[int], bool]) -> None:
        self.asks = asks
        """Whether this rank wants it at a step."""
        self.is_granted = False
        """Whether any rank wanted it at the last step."""


class RankSteps:
    """The steps of one rank in a synchronous run, and its messages to the others. Used by the training thread only."""

    def __init__(self, lock_step: LockStep, *, deterministic: bool, shares_rows: bool) -> None:
        self.lock_step = lock_step
        self.shares_rows = shares_rows
        """Whether the ranks store the rows, so that reads and updates are collective calls."""
        self.words = RankAgreement(lock_step, "synchronous training")
        self.rank, self.size = self.words.rank, self.words.size
        self.averaging = AveragingConfig.from_environment(deterministic=deterministic)
        """How dense gradients are exchanged."""
        self._wishes: list[CollectiveFlag] = []
        self._wants_to_stop = False
        self.stops = False
        """Whether all ranks end after the present step."""
        self._step = 0
        self.stores: list[ShardedStore] = []
        """Stores of the model, once it is built."""
        self._common_error: BaseException | None = None

    @property
    def is_first(self) -> bool:
        """Returns whether this rank writes summaries, dense weights and manifests, and polls clocks and files."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Returns whether it is a run of one rank."""
        return self.size == 1

    def attach(self, state: TrainState) -> None:
        """Takes the stores of a model, whose calls a rank without a batch follows; those on servers make none."""
        self.stores = list(sharded_stores(state.stores).values())

    def begin(self, state: TrainState) -> None:
        """Refuses ranks with other models or steps, and gives all of them the dense weights of rank 0."""
        self._step = state.global_step
        if self.is_alone:
            return
        advice = "start all ranks with the same program and options"
        self.words.require_same("model", _described(state), advice=advice)
        self.words.require_same("global step", str(state.global_step), advice="let them restore the same checkpoint")
        if state.model is not None:
            with without_rows():  # rows are where they belong
                collective.broadcast_parameters(state.model.state_dict())

    # Steps

    def add_wish(self, asks: Callable[[int], bool]) -> CollectiveFlag:
        """Adds a request that all ranks share at each step. All ranks must add the same requests, in the same order."""
        wish = CollectiveFlag(asks)
        self._wishes.append(wish)
        return wish

    def request_stop(self) -> None:
        """Stops all ranks after the next step that carries the request; a single rank after the current step."""
        self._wants_to_stop = True
        self.stops = self.stops or self.is_alone

    def update(self, update: RankUpdate, weights: Sequence[Parameter], reason: str | None) -> None:
        """Makes the step of a rank with a batch: averages gradients over all such ranks.

        Raises:
            InvalidArgumentError: raised on all ranks if any rank refuses the step, or if their steps differ.
        """
        if self.is_alone and reason is None:
            self._heed(update, self._flags(None))
            return
        call = Call(UPDATE, f"of step {update.reached}", update.to_bytes())
        sizes = told([each.grad for each in weights]).expand(self.size, -1).contiguous()
        work = partial(self._take_part, update, weights, reason)
        try:
            self._heed(update, self.lock_step.run(call, sizes=sizes, flags=self._flags(reason), work=work))
        except InvalidArgumentError as error:
            self._common_error = error
            raise

    def follow_step(self, weights: Sequence[Parameter]) -> RankUpdate | None:
        """Makes a step without a batch: follows the calls of the others up to their `update`.

        Returns:
            The update of the others; None if no rank has a batch.
        """
        if self.is_alone:
            return None
        heard: list[tuple[RankUpdate, int]] = []

        def take_part(agreed: Agreed, arguments: bytes) -> None:
            update = RankUpdate.of(arguments)
            heard.append((update, agreed.flags))
            self._take_part(update, weights, None, agreed)

        for each in weights:
            each.grad = None
        try:
            while not heard:
                if self.follow({UPDATE: take_part}).result() is None:
                    return None
        except InvalidArgumentError as error:
            self._common_error = error
            raise
        self._heed(*heard[0])
        return heard[0][0]

    def follow(self, handlers: Mapping[str, Callable[[Agreed, bytes], object]] | None = None) -> LineCall[str | None]:
        """Takes part in the next call of the others with nothing."""
        known = {kind: handler for store in self.stores for kind, handler in store.followers().items()}
        return self.lock_step.follow({**known, **(handlers or {})}, flags=self._flags(None))

    def is_common(self, error: BaseException) -> bool:
        """Returns whether all ranks raise this error at the same step, so that they can still save together."""
        return self.is_alone or error is self._common_error

    def _flags(self, reason: str | None) -> int:
        flags = (_REFUSED if reason is not None else 0) | (_STOP if self._wants_to_stop else 0)
        for number, wish in enumerate(self._wishes):
            flags |= (_FIRST_WISH << number) if wish.asks(self._step + 1) else 0
        return flags

    def _take_part(self, update: RankUpdate, weights: Sequence[Parameter], reason: str | None, agreed: Agreed) -> int:
        """Refuses the step on all ranks, or averages; returns the combined flags. Part of a collective call."""
        if agreed.flags & _REFUSED:
            text = (reason or "").encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
            texts = gather_texts(self.lock_step.line.wire, text, [_TEXT_BYTES] * self.size)
            rank = next(rank for rank, flags in enumerate(agreed.flags_of_ranks) if flags & _REFUSED)
            told = texts[rank].rstrip(b"\0").decode(errors="replace")
            raise RaisedByAllError(
                InvalidArgumentError(
                    f"step {update.reached}: rank {rank} refuses it: {told}. No rank has changed anything"
                )
            )
        if update.has_dense:
            averaged = average_gradients(
                self.lock_step.line.wire,
                [each.grad for each in weights],
                weights=weights,
                present=agreed.sizes,
                num_active=agreed.num_active,
                options=self.averaging,
            )
            for weight, gradient in zip(weights, averaged, strict=True):
                weight.grad = gradient
        return agreed.flags

    def _heed(self, update: RankUpdate, flags: int) -> None:
        self._step = update.reached
        self.stops = self.stops or bool(flags & _STOP)
        for number, wish in enumerate(self._wishes):
            wish.is_granted = bool(flags & (_FIRST_WISH << number))


def _described(state: TrainState) -> str:
    """Describes a model, one fact per line."""
    lines: list[str] = []
    if state.model is not None:
        with without_rows():
            for name, value in state.model.state_dict().items():
                shape = f"{value.dtype} {list(value.shape)}" if hasattr(value, "shape") else type(value).__name__
                lines.append(f"weight {name}: {shape}")
    for name, optimizer in state.optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            told = {key: _plain(value) for key, value in group.items() if key != "params"}
            lines.append(f"optimizer {name}: {type(optimizer).__name__}, group {number}: {told}")
    for name, store in state.stores.items():
        tables = {table.name: [segment.dim for segment in table.segments] for table in store.schema.tables}
        lines.append(f"tables of {name}: {tables}, digest {store.schema.digest}")
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
