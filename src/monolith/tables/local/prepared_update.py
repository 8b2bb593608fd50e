"""An update of some plans, checked and made into one call of the core: here, or at the servers that keep the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.arrays import finite_scale, float_array
from monolith.tables.local.merged_update import merge_updates, num_latest, require_latest_of_all, spread_latest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import Update
    from monolith.tables.local.merged_update import MergedUpdate
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.local.plan import LocalPlan


class PreparedUpdate(NamedTuple):
    """An update that was checked and made into one call of the core."""

    plans: Sequence[LocalPlan]
    push: _core.Push
    merged: MergedUpdate
    rates: NDArray[np.float32]
    scale: float
    rule: Update

    @property
    def is_known_finite(self) -> bool:
        """Whether the check for NaN and infinity can be skipped; sums of finite gradients may be infinite."""
        return self.rule.known_finite and len(self.plans) == 1


def prepare_update(
    native: NativeTables,
    plans: Sequence[LocalPlan],
    gradients: Sequence[Tensor],
    rule: Update,
    times: NDArray[np.int64],
    *,
    incarnation: int,
    subject: str,
) -> PreparedUpdate:
    """Does everything of an update except the call itself, with these times instead of those of the rule.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """
    if not plans or len({id(plan) for plan in plans}) != len(plans):
        raise InvalidArgumentError(f"{subject}: apply takes one or more plans, each once; got {len(plans)}")
    arrays = [
        float_array(gradient, (plan.num_values,), subject, "gradient")
        for plan, gradient in zip(plans, gradients, strict=True)
    ]
    return PreparedUpdate(
        plans=plans,
        push=_push_of(plans, rule, incarnation),
        merged=merge_updates(native, plans, arrays, times, _latest_of(native, plans, rule, subject)),
        rates=float_array(rule.learning_rates, (native.rate_splits[-1],), subject, "learning_rates"),
        scale=finite_scale(rule.scale, subject),
        rule=rule,
    )


def require_not_discarded(plans: Sequence[LocalPlan], subject: str) -> None:
    """Rejects plans that have ended without an update."""
    for plan in plans:
        if plan.status == "discarded":
            raise FailedPreconditionError(f"{subject}: plan of {plan.stamp} was discarded; make a new one")


def _push_of(plans: Sequence[LocalPlan], rule: Update, incarnation: int) -> _core.Push:
    last = plans[0].stamp if len(plans) == 1 else max((plan.stamp for plan in plans), key=lambda each: each.seq)
    return _core.Push(
        worker=last.worker,
        incarnation=incarnation,
        first_seq=min(plan.stamp.seq for plan in plans),
        seq=last.seq,
        previous=rule.previous,
        position=last.position,
        event_time_ms=last.event_time_ms,
    )


def _latest_of(
    native: NativeTables, plans: Sequence[LocalPlan], rule: Update, subject: str
) -> list[NDArray[np.float32]] | None:
    if rule.latest is None:
        return None
    require_latest_of_all(rule.latest, len(plans), subject)
    if not any(native.uses_latest):
        return None
    return [
        spread_latest(native, plan.core, float_array(latest, (num_latest(native, plan.core),), subject, "latest"))
        for plan, latest in zip(plans, rule.latest, strict=True)
    ]
