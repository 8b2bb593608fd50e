"""Measures parameter servers beside a store in process and beside bare sockets: ratios of one run, in turns.

    python benchmarks/ps.py                             # everything, about ten minutes on two cores
    python benchmarks/ps.py --rows ps_cpu ps_wall       # some rows
    python benchmarks/ps.py --quick                     # small tables: does everything run?
    python benchmarks/ps.py --markdown                  # as RESULTS.md has it

4,096 x 26 ids, zipf 1.05, dim 16, Adagrad. Servers are processes of this machine, reached over loopback. Processor time
is that of whole processes, by the kernel's own clocks. The bare socket loop is `cli/_bench/socket_loop.cpp`, compiled
in the run: one thread at each end sends and receives as many bytes as the step beside it, and does nothing else.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monolith.cli._bench.catalog import PS_ROWS
from monolith.cli._bench.script import measure_and_print

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status."""
    return measure_and_print(PS_ROWS, description=__doc__, rounds=9, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
