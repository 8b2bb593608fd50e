"""The set of ids touched since it was last read."""

from __future__ import annotations

import operator
import threading
import weakref
from typing import TYPE_CHECKING

import torch

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.forks import fork_safe
from monolith.tables.arrays import id_array

if TYPE_CHECKING:
    from monolith.tables.arrays import Ids

TOUCHED_KEY_SET_CAPACITY = 64 * 1024 * 1024 // (8 * 4)
"""Ids that a set holds before it drops them all: 2,097,152, which is 64 MiB at 32 bytes each."""
TOUCHED_KEY_SET_CONCURRENCY_LEVEL = 1024
"""Number of locks of a set, and of threads that can insert concurrently."""

_SUBJECT = "touched key set"
_shared_sets: weakref.WeakValueDictionary[str, _core.TouchedKeySet] = weakref.WeakValueDictionary()
_shared_sets_lock = fork_safe(threading.Lock())


def create_touched_key_set(capacity: int, concurrency_level: int, name_suffix: str = "") -> _core.TouchedKeySet:
    """Creates the native set that `TouchedKeySet` wraps.

    Args:
        capacity: Ids held before the set is cleared, > 0.
        concurrency_level: Number of locks, in 1..65536, rounded up to a power of two.
        name_suffix: Callers that give the same non-empty suffix get one set, for as long as one of them keeps it. The
            empty suffix always makes a new set.

    Raises:
        InvalidArgumentError: A number out of range, or a suffix that names a living set with other numbers.
        TypeError: A number that is not an int, a suffix that is not a string.
    """
    capacity = _whole_number(capacity, "capacity")
    concurrency_level = _whole_number(concurrency_level, "concurrency_level")
    if not isinstance(name_suffix, str):
        raise TypeError(f"{_SUBJECT}: name_suffix must be a string, got {type(name_suffix).__name__} {name_suffix!r}")
    if not name_suffix:
        return _core.TouchedKeySet(capacity, concurrency_level)
    with _shared_sets_lock:
        shared = _shared_sets.get(name_suffix)
        if shared is None:
            shared = _core.TouchedKeySet(capacity, concurrency_level)
            _shared_sets[name_suffix] = shared
        elif (shared.capacity, shared.concurrency_level) != (capacity, concurrency_level):
            raise InvalidArgumentError(
                f"{_SUBJECT} {name_suffix!r}: exists with capacity {shared.capacity} and concurrency_level "
                f"{shared.concurrency_level}, got {capacity} and {concurrency_level}; use those or another suffix"
            )
        return shared


class TouchedKeySet:
    """A set of int64 ids that many threads add to while one takes from it.

    An insert that finds more than ``capacity`` ids drops them all before it continues, and returns the number dropped.
    Memory is allocated as ids come. Thread-safe; results are as if single inserts and steals had happened one after
    another.

    >>> keys = TouchedKeySet(capacity=1000, concurrency_level=8)
    >>> keys.insert(torch.tensor([[5, 7], [5, 5]]))
    0
    >>> sorted(keys.steal().tolist()), keys.size()
    ([5, 7], 0)
    """

    def __init__(
        self,
        capacity: int = TOUCHED_KEY_SET_CAPACITY,
        concurrency_level: int = TOUCHED_KEY_SET_CONCURRENCY_LEVEL,
        name_suffix: str = "",
    ) -> None:
        self._set = create_touched_key_set(capacity, concurrency_level, name_suffix)

    @property
    def capacity(self) -> int:
        """Ids held before the set is cleared; it never holds more than one above this."""
        return self._set.capacity

    @property
    def concurrency_level(self) -> int:
        """Number of locks, as requested."""
        return self._set.concurrency_level

    def insert(self, ids: Ids) -> int:
        """Adds int64 ids of any shape, in row-major order; ids already in the set change nothing.

        Returns:
            The number of ids dropped: 0 unless the set was above its capacity.
        """
        return self._set.insert(id_array(ids, _SUBJECT).reshape(-1))

    def steal(self) -> torch.Tensor:
        """Removes and returns every id, as int64 [size] in no particular order. Each id goes to one caller only."""
        return torch.from_numpy(self._set.steal())

    def size(self) -> int:
        """Returns the number of ids in the set."""
        return self._set.size()

    def __repr__(self) -> str:
        numbers = f"capacity={self.capacity}, concurrency_level={self.concurrency_level}"
        return f"{type(self).__name__}({numbers}, size={self.size()})"


def _whole_number(value: object, name: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError without `__index__`
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{_SUBJECT}: {name} must be an int, got {type(value).__name__} {value!r}")
    if not 0 < number < 2**63:
        raise InvalidArgumentError(f"{_SUBJECT}: {name} must be > 0 and below 2^63, got {number}")
    return number
