"""What the ranks of a store must agree on: its tables, the buckets of each rank, and the run id of the store."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.collective.serial_executor import RaisedByAllError
from monolith.collective.sharded.outcome import gather_texts
from monolith.collective.sharded.values import pack, unpack
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.bucket_owners import owned_ranges, require_owners
from monolith.tables.differences import differences
from monolith.tables.table_config import sorted_by_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.collective.wire import Wire
    from monolith.tables.local.history import LocalHistory
    from monolith.tables.table_config import TableConfig

__all__ = ["owned_by_ranks", "require_same_tables"]

_SUBJECT = "sharded store"
_VARIABLE = "MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD"
_FEW_RANKS = 4
"""Up to this number of ranks, a rank without rows would cost too much capacity."""


def owned_by_ranks(num_ranks: int, spare_first_rank: bool | None) -> tuple[range, ...]:
    """Returns the buckets of each rank; rank 0 may have none, so that it has time for its own tasks.

    >>> owned_by_ranks(3, spare_first_rank=True)
    (range(0, 0), range(0, 512), range(512, 1024))
    """
    if spare_first_rank is None:
        spare_first_rank = num_ranks > _FEW_RANKS and _variable_says_so()
    if spare_first_rank and num_ranks == 1:
        raise InvalidArgumentError(f"{_SUBJECT}: spare_first_rank leaves a run of one rank without an owner of rows")
    num_owners = num_ranks - spare_first_rank
    require_owners(num_owners, subject=_SUBJECT, name="the number of ranks with rows")
    return ((range(0),) if spare_first_rank else ()) + owned_ranges(num_owners)


def _variable_says_so() -> bool:
    value = environment.get(_VARIABLE) or "1"
    if value not in {"0", "1"}:
        raise InvalidArgumentError(f"{_SUBJECT}: {_VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"


def require_same_tables(
    wire: Wire, configs: Mapping[str, TableConfig], options: Sequence[Any], history: LocalHistory
) -> None:
    """Raises if ranks differ, else takes the run id (`life`) of rank 0. Runs in a call of all ranks.

    Raises:
        RaisedByAllError: they differ; the message shows the fields.
    """
    tables = {config.name: config.to_dict() for config in sorted_by_name(configs)}
    told = json.loads(json.dumps({"tables": tables, "options": list(options)}))
    found = [unpack(text)[0] for text in gather_texts(wire, pack([told, secrets.randbits(63)]))]
    first = found[0][0]
    for rank, (theirs, _) in enumerate(found):
        if theirs != first:
            raise RaisedByAllError(
                FailedPreconditionError(
                    f"{_SUBJECT}: rank {rank} has other tables than rank 0: {differences(first, theirs)} (here: at rank"
                    f" 0). Give all ranks the same model and options"
                )
            )
    history.take_life(0, found[0][1])
