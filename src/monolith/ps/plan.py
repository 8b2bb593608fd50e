"""The plan of a batch whose rows servers keep."""

from __future__ import annotations

from monolith.tables.local_plan import LocalPlan


class PsPlan(LocalPlan):
    """A plan, and the number under which servers keep their part of it between the read and the update."""

    __slots__ = ("ticket",)

    ticket: int

    @classmethod
    def of(cls, *given: object) -> PsPlan:
        """Made as a `LocalPlan`; no server has it yet."""
        plan = cls(*given)  # type: ignore[arg-type]  # as LocalPlan says
        plan.ticket = 0
        return plan
