"""Number and name of a shard of a model."""

from __future__ import annotations

from dataclasses import dataclass

from monolith.errors import InvalidArgumentError
from monolith.tables import owned_ranges, require_owners


@dataclass(frozen=True, slots=True)
class ShardNumber:
    """Number of a shard, which determines its buckets."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> ShardNumber:
        """Parses ``i/n``, with i counted from 0.

        Raises:
            InvalidArgumentError: the text has another form.

        >>> ShardNumber.parse("1/3").buckets
        range(342, 683)
        """
        index, _, count = text.partition("/")
        if not (index.isdigit() and count.isdigit()):
            raise InvalidArgumentError(f"shard: i/n expected, such as 0/3 for the first of three, got {text!r}")
        return cls(int(index), int(count))

    def __post_init__(self) -> None:
        require_owners(self.count, subject="shard", name="the number of shards")
        if not 0 <= self.index < self.count:
            raise InvalidArgumentError(f"shard: an index from 0 to {self.count - 1} expected, got {self.index}")

    @property
    def buckets(self) -> range:
        """Buckets of the shard."""
        return owned_ranges(self.count)[self.index]


def shard_model(model: str, index: int) -> str:
    """Returns the name of a shard's sub-graph in requests.

    >>> shard_model("ranker", 2)
    'ranker:ps_2'
    """
    return f"{model}:ps_{index}"
