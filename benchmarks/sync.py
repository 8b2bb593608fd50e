"""Measures synchronous training: ranks beside one process, beside torchrec's, and beside torch's bare exchange.

    python benchmarks/sync.py                           # everything, about five minutes on two cores
    python benchmarks/sync.py --rows sync_training      # some rows
    python benchmarks/sync.py --quick                   # small tables: does everything run?
    python benchmarks/sync.py --markdown                # as RESULTS.md has it

Ranks are processes of this machine that meet over loopback and exchange by Gloo. Where something stands beside a
figure, both are of one run, in turns. The row of torchrec needs the environment that README.md describes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monolith.cli._bench.catalog import SYNC_ROWS
from monolith.cli._bench.script import measure_and_print

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status."""
    return measure_and_print(SYNC_ROWS, description=__doc__, rounds=9, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
