"""Measures the way from what users do to examples, and from the rows of a trainer to those of its followers.

    python benchmarks/online.py                             # everything, about four minutes
    python benchmarks/online.py --rows online_changes       # some rows
    python benchmarks/online.py --quick                     # small tables: does everything run?
    python benchmarks/online.py --markdown                  # as RESULTS.md has it

All are processor time, so that a busy machine tells nearly the same, but the delay of `online_path`, which is by the
clock. `online_joiner` is compared with Bytewax where that is installed (`pip install bytewax`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monolith.cli._bench.catalog import ONLINE_ROWS
from monolith.cli._bench.script import measure_and_print

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status."""
    return measure_and_print(ONLINE_ROWS, description=__doc__, rounds=9, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
