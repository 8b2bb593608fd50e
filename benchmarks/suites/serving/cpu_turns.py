"""CPU time of alternating contestants, which other load on the machine hardly affects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monolith.cli._bench.timing import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.cli._bench.setting import Setting

_CALLS_A_SECOND = 100
_WARM_UP_CALLS = 5


def take_cpu_turns(
    contestants: Mapping[str, Callable[[int], object]], setting: Setting, *, clock: Callable[[], float] | None = None
) -> dict[str, list[float]]:
    """Returns the CPU time of a call in microseconds, of each contestant in each round.

    Args:
        contestants: Name -> a call, which gets an increasing number.
        setting: Number and length of rounds.
        clock: Clock of the measured CPU time; default: that of this thread.
    """
    now = clock or time.thread_time
    calls = max(_WARM_UP_CALLS, round(_CALLS_A_SECOND * setting.seconds))
    found: dict[str, list[float]] = {name: [] for name in contestants}
    with quiet_collector():
        for _ in range(setting.rounds):
            for name, call in contestants.items():
                for number in range(_WARM_UP_CALLS):
                    call(number)
                begin = now()
                for number in range(calls):
                    call(number)
                found[name].append(1e6 * (now() - begin) / calls)
    return found
