"""How large and how long a run is."""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Sizes and durations shared by all rows. The defaults are the full table's; it travels to children as JSON."""

    threads: int = 2
    """Threads of the table and of every peer."""

    thread_counts: tuple[int, ...] = ()
    """Numbers of threads that are compared where more of them are measured; empty: one thread and `threads`."""

    small_rows: int = 1_000_000
    """Rows of the small table of workload A: its hot rows fit the last-level cache."""

    large_rows: int = 10_000_000
    """Rows of the large table of workload A, of workload B, and of the saved one."""

    huge_rows: int = 50_000_000
    """Rows a table grows to, and of the largest table of workload B."""

    memory_rows: tuple[int, ...] = (1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000)
    """Table sizes at which memory per id is measured: powers of two apart enough to meet full and fresh indexes."""

    examples: int = 4096
    """Examples of a batch (B)."""

    features: int = 26
    """Ids of an example (F)."""

    num_batches: int = 128
    """Distinct batches: far fewer would stay in the last-level cache and flatter the result."""

    rounds: int = 5
    """Turns each contestant gets; the median counts."""

    seconds: float = 1.0
    """Length of one turn."""

    directory: str = dataclasses.field(default_factory=tempfile.gettempdir)
    """Where files are saved: the disk that is measured."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(isinstance(number, int | float) and number <= 0 for number in numbers):
                raise ValueError(f"bench setting {field.name!r}: expected a number above 0, got {value}")

    @property
    def ids_per_batch(self) -> int:
        """Ids of one batch: B * F."""
        return self.examples * self.features

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Setting:
        """Returns the setting that `to_json` described."""
        tuples = {name: tuple(fields[name]) for name in ("memory_rows", "thread_counts")}
        return cls(**{**fields, **tuples})

    def quick(self) -> Setting:
        """Returns a run of a minute or two, with small tables, to show that everything works; not for figures."""
        return dataclasses.replace(
            self,
            small_rows=100_000,
            large_rows=1_000_000,
            huge_rows=2_000_000,
            memory_rows=(250_000, 500_000, 1_000_000),
            num_batches=16,
            rounds=3,
            seconds=0.1,
        )
