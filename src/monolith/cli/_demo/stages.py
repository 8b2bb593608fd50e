"""Time of the stages of a race: a stopwatch that is called at the end of each stage, and its result as bars."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING

from monolith.observe.charts import NARROW_BELOW

if TYPE_CHECKING:
    from monolith.clock import Clock

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


class Stopwatch:
    """Adds up what each stage takes: the time since the stage before it ended. Belongs to one thread."""

    def __init__(self, clock: Clock) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """The first stage begins here."""
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
