"""Finds what a call or a tensor was computed from, also where the autograd graph ends.

The autograd graph records which tensors a tensor was computed from by differentiable operations. A queue or an
asynchronous function cuts it: the output in one thread was made by a call in another. So these record the calls
they read from, by this protocol, and `check_ops_dependence` walks both.

* A call is recorded by an object with a `name` and `reads_from` (`ReadsFrom`); `RecordedCall` is the plain one.
* A tensor that a call returned is tied to that call by `record_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.weak import WeakTensorKeyDictionary

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


@runtime_checkable
class ReadsFrom(Protocol):
    """A call that declares what it reads, such as a queue's enqueue or an asynchronous function."""

    @property
    def name(self) -> str:
        """Name of the call in messages."""

    @property
    def reads_from(self) -> Iterable[Op]:
        """The calls that run, and the tensors that are read, when this call runs."""


Op: TypeAlias = Tensor | Node | ReadsFrom
"""Something that can depend on something: a tensor, a node of the autograd graph, or a recorded call."""


class RecordedCall(Generic[P, R_co]):
    """A function with the record of what it reads from.

    >>> count = RecordedCall(lambda: 1, name="count")
    >>> report = RecordedCall(lambda: count() + 1, name="report", reads_from=[count])
    >>> report()
    2
    """

    def __init__(self, call: Callable[P, R_co], *, name: str, reads_from: Iterable[Op] = ()) -> None:
        self._call = call
        self.name = name
        self.reads_from: tuple[Op, ...] = tuple(reads_from)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Runs the function."""
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"RecordedCall({self.name!r})"


_SOURCES: MutableMapping[Tensor, tuple[ReadsFrom, ...]] = WeakTensorKeyDictionary()
"""Tensor -> the calls it came from; an entry lives as long as its tensor."""


def record_source(tensor: Tensor, call: ReadsFrom) -> None:
    """Records that `tensor` was returned by `call`, where autograd does not see it."""
    _SOURCES[tensor] = (*_SOURCES.get(tensor, ()), call)


def check_ops_dependence(ops_1: Op | Sequence[Op], ops_2: Op | Sequence[Op]) -> None:
    """Rejects `ops_1` that depend on any of `ops_2`: running both would run the latter twice.

    An op depends on itself, on what it reads from, and on all dependencies of these. Only recorded calls and the
    autograd graph are searched; a tensor that requires no gradient has no history unless it was recorded.

    Raises:
        InvalidArgumentError: there is such a dependence; its text names all of `ops_1` and those of `ops_2` that were
            found.
        TypeError: an op is neither a tensor nor an autograd node nor a recorded call.
    """
    first, second = _as_list(ops_1), _as_list(ops_2)
    reached = _reached(first)
    dependent = [op for op in second if any(id(identity) in reached for identity in _identities(op))]
    if dependent:
        names = ", ".join(_name(op) for op in dependent)
        raise InvalidArgumentError(
            f"Checking ops dependence, the ops [{', '.join(_name(op) for op in first)}] depend on ops [{names}],"
            f" which may cause ops [{names}] to be run twice."
        )


def _as_list(ops: Op | Sequence[Op]) -> list[Op]:
    return list(ops) if isinstance(ops, list | tuple) else [ops]  # type: ignore[list-item]


def _reached(ops: Iterable[Op]) -> dict[int, Op]:
    """Returns everything the ops depend on, by identity; holding the objects keeps identities from being reused."""
    reached: dict[int, Op] = {}
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        if id(op) not in reached:
            reached[id(op)] = op
            waiting.extend(_read_by(op))
    return reached


def _read_by(op: Op) -> Iterator[Op]:
    if isinstance(op, Tensor):
        yield from _SOURCES.get(op, ())
        if op.grad_fn is not None:
            yield op.grad_fn
    elif isinstance(op, Node):
        yield from (node for node, _ in op.next_functions if node is not None)
        # Where the graph ends, torch keeps the leaf that accumulates the gradient.
        leaf = getattr(op, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
    else:
        _require_op(op)
        yield from op.reads_from


def _identities(op: Op) -> Iterator[Op]:
    """Yields the op itself, and for a tensor the node that computed it, by which other tensors refer to it."""
    _require_op(op)
    yield op
    if isinstance(op, Tensor) and op.grad_fn is not None:
        yield op.grad_fn


def _require_op(op: object) -> None:
    if not isinstance(op, Tensor | Node | ReadsFrom):
        raise TypeError(
            f"check_ops_dependence: expected a tensor, an autograd node or a recorded call, got {type(op).__name__};"
            " wrap a function in RecordedCall"
        )


def _name(op: Op) -> str:
    if isinstance(op, Tensor):
        made_by = "leaf" if op.grad_fn is None else op.grad_fn.name()
        return f"{made_by} of shape {tuple(op.shape)}"
    return op.name() if isinstance(op, Node) else op.name
