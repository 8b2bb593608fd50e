"""Reads a single row of a server for debugging; inserts nothing, and blocks no other call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables.arrays import new_rows
from monolith.tables.history import NUM_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.ps.server.hosted_rows import HostedRows

__all__ = ["RowLookCalls"]


class RowLookCalls:
    """The method of the service that reads a row. Called by server threads.

    Args:
        find: Returns the rows of a store by its name.
    """

    def __init__(self, find: Callable[[str], HostedRows]) -> None:
        self._find_rows = find

    def LookRow(self, request: messages.LookRowRequest) -> Any:  # noqa: N802 - as on the wire
        """Returns the row of a key, if this server has it."""
        native = self._find_rows(request.store).store.native
        names = list(native.schema.names)
        if request.table not in names:
            raise NotFoundError(f"store {request.store!r} has no table {request.table!r}; it has {', '.join(names)}")
        if request.bucket >= NUM_BUCKETS:
            raise InvalidArgumentError(f"bucket: one below {NUM_BUCKETS} expected, got {request.bucket}")
        number = names.index(request.table)
        key, bucket = np.array([request.key], np.int64), np.array([request.bucket], np.uint16)
        plan = native.core.plan(key, native.splits_for(number, 1), True, bucket)
        values = new_rows((native.dims[number],))
        found = native.core.read(plan, values, 0) == 1
        return messages.LookRowResponse(found=found, weights=values if found else [])
