"""Measures what serves a model: its graph, its layout, its server, and the server under load.

    python benchmarks/serving.py                                # everything, about six minutes on two cores
    python benchmarks/serving.py --rows serving_graph           # some rows
    python benchmarks/serving.py --quick                        # small tables and short loads: does everything run?
    python benchmarks/serving.py --markdown                     # as RESULTS.md has it

The model is a DeepFM of 26 slots of 1 + 16 floats, with towers of 256 and 128. `serving_graph`, `serving_layout` and
`serving_server` are processor time, so that a busy machine tells nearly the same. Loads are by the clock: the server
has one core and the client, a process of its own, the others, so they want two quiet ones. `serving_ray` is compared
with Ray Serve where that is installed (`pip install 'ray[serve]'`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monolith.cli._bench.catalog import SERVING_ROWS
from monolith.cli._bench.script import measure_and_print

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status."""
    return measure_and_print(SERVING_ROWS, description=__doc__, rounds=9, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
