"""The rows of `monolith bench`: what each measures, where its code is, how much memory it takes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One row of a table."""

    key: str
    title: str
    needed_bytes: Callable[[Setting], int]
    """Maximum memory in bytes, so that a smaller machine skips the row instead of being killed."""
    function: str
    """``module:function``; the function takes a `Setting` and returns the measurements of the row."""


ROWS: Final = (
    BenchRow(
        key="training",
        title="lookup + apply_gradients on workload A, against FBGEMM, torch and dict + torch",
        needed_bytes=lambda setting: setting.large_rows * 800,
        function="monolith.cli._bench.against_peers:measure_training",
    ),
    BenchRow(
        key="lookup",
        title="lookup alone on workload A, against torch's static EmbeddingBag",
        needed_bytes=lambda setting: setting.large_rows * 500,
        function="monolith.cli._bench.against_peers:measure_lookup",
    ),
    BenchRow(
        key="insert",
        title="insert of unseen ids, with growth and initializer",
        needed_bytes=lambda setting: setting.large_rows * 200,
        function="monolith.cli._bench.one_table:measure_insert",
    ),
    BenchRow(
        key="steps",
        title="plan, read and apply apart, by threads",
        needed_bytes=lambda setting: setting.large_rows * 250,
        function="monolith.cli._bench.by_threads:measure_steps",
    ),
    BenchRow(
        key="threads",
        title="all threads against one",
        needed_bytes=lambda setting: setting.huge_rows * 200,
        function="monolith.cli._bench.by_threads:measure_threads",
    ),
    BenchRow(
        key="memory",
        title="memory per id beyond weights and state",
        needed_bytes=lambda setting: max(setting.memory_rows) * 200,
        function="monolith.cli._bench.one_table:measure_memory",
    ),
    BenchRow(
        key="restore",
        title="restore against a cold read",
        needed_bytes=lambda setting: setting.large_rows * 400,
        function="monolith.cli._bench.one_table:measure_restore",
    ),
    BenchRow(
        key="one_id",
        title="lookup of one id from Python",
        needed_bytes=lambda setting: setting.small_rows * 200,
        function="monolith.cli._bench.one_table:measure_one_id",
    ),
)

CHECKOUT_ROWS: Final = ("gather", "callers", "embeddings", "growth", "optimizers", "save", "cut")
"""Rows of the suite `tables` of `benchmarks/run.py`, which is not part of the installed package."""
