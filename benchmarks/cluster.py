"""Measures a job of many processes: what its steps cost, how long it stands still, and how soon a lost process is back.

    python benchmarks/cluster.py                        # everything
    python benchmarks/cluster.py --rows job_home        # some rows
    python benchmarks/cluster.py --quick                # small tables: does everything run?
    python benchmarks/cluster.py --markdown             # as RESULTS.md has it

All processes are of this machine and reach each other over loopback. Where something stands beside a figure, both are
of one run, in turns.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monolith.cli._bench.catalog import JOB_ROWS
from monolith.cli._bench.script import measure_and_print

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status."""
    return measure_and_print(JOB_ROWS, description=__doc__, rounds=5, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
