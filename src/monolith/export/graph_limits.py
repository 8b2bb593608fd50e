"""Bounds the sizes, the operations and the writes of a graph before it runs.

The graph is run on tensors without memory (torch's ``meta`` device) for several numbers of examples. A file crafted to
exhaust memory, to loop forever or to change the weights of a server is rejected here.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from monolith.errors import DataLossError, OpError
from monolith.export.allowed_operations import user_operations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.export.graph_file import JoinedRows

InputKind = Literal["weight", "constant", "rows", "column", "values", "row_splits", "joined"]


class GraphInput(NamedTuple):
    """One input of a graph."""

    kind: InputKind
    """``rows``: the output of a feature. ``values``, ``row_splits``: the parts of a ragged column. ``joined``: several
    concatenated features; only a graph in memory has such inputs."""
    name: str


BASE_BYTES = 64 << 20
WEIGHT_FACTOR = 16
EXAMPLE_BYTES = 1 << 20
INPUT_FACTOR = 4096
"""All results of a graph for n examples together take at most `BASE_BYTES`, `WEIGHT_FACTOR` times the weights, and for
each example `EXAMPLE_BYTES` and `INPUT_FACTOR` times its inputs."""
_MOST_EXAMPLES = 10_000
"""Examples of a request, unless a server allows more."""
_FAR = 1 << 20
_INT64 = range(-(2**63), 2**63)
_OFF = frozenset({"unsafe", "training", "train", "use_input_stats"})
"""Arguments that must be false: otherwise a kernel skips checks, or changes statistics."""
_ABSENT = frozenset({"sorter"})
"""Arguments that must be omitted: a kernel uses them as unchecked indices."""


class InputShape(NamedTuple):
    """Shape of an input of a graph. The first dim is the number of examples, one more, or the number of values."""

    first: str
    """``examples``, ``splits``, or ``values:`` and the name of a column; empty: none of these."""
    rest: tuple[int, ...]
    dtype: torch.dtype

    def sized(self, sizes: Mapping[str, int]) -> Tensor:
        """Returns a meta tensor of this shape."""
        first = () if not self.first else (sizes[self.first],)
        return torch.empty((*first, *self.rest), dtype=self.dtype, device="meta")


def input_shape(
    place: GraphInput,
    joined: Mapping[str, JoinedRows],
    features: Mapping[str, tuple[int, ...]],
    columns: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
) -> InputShape:
    """Returns the shape of an input of a graph in requests.

    `features` has the shapes of their rows for one example, `columns` types and shapes of numbers for one example.
    """
    try:
        if place.kind == "joined":
            cuts = joined[place.name].cuts
            widths = [cut.end - cut.start for cut in cuts]
            is_concat = joined[place.name].form == "concat"
            return InputShape("examples", (sum(widths),) if is_concat else (len(cuts), widths[0]), torch.float32)
        if place.kind == "rows":
            return InputShape("examples", features[place.name], torch.float32)
        dtype, rest = columns[place.name]
    except KeyError as error:
        raise DataLossError(f"no feature and no column is called {place.name!r:.80}") from error
    if place.kind == "row_splits":
        return InputShape("splits", (), torch.int64)
    if place.kind == "values":
        return InputShape(f"values:{place.name}", (), dtype)
    return InputShape("examples", rest, dtype)


def require_safe_calls(graph: Graph, *, origin: str) -> None:
    """Checks the arguments of operations by their schemas."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        schema = node.target._schema  # noqa: SLF001 - torch has no public accessor
        if schema.is_mutable and not node.target.overloadpacket.__name__.endswith("_"):
            raise DataLossError(f"{origin}: {node.target} writes its result into an argument")
        named = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
        for name, value in {**named, **node.kwargs}.items():
            is_off = name not in _OFF or value is None or value is False
            if not is_off or (name in _ABSENT and value is not None):
                raise DataLossError(f"{origin}: {node.target} has {name}={value!r:.40}, which no export has")


def require_bounded_graph(module: GraphModule, inputs: Sequence[InputShape | Tensor], *, origin: str) -> None:
    """Runs a graph on meta tensors, for several numbers of examples.

    Weights and constants are given as tensors, all other inputs by shape.
    """
    names = sorted({value.first for value in inputs if isinstance(value, InputShape) and value.first})
    columns = [name for name in names if name not in {"examples", "splits"}]
    lines = {name: (1 + secrets.randbelow(7), secrets.randbelow(50)) for name in columns}
    counts = [2, 3, _MOST_EXAMPLES // 2 + secrets.randbelow(_MOST_EXAMPLES // 2), _FAR]
    seen: list[dict[str, tuple[int, ...]]] = []
    for count in counts:
        sizes = {name: slope * count + offset for name, (slope, offset) in lines.items()}
        sizes |= {"examples": count, "splits": count + 1}
        tensors = _given(inputs, sizes, origin)
        limit = _limit(inputs, tensors, count) if count <= _MOST_EXAMPLES else None
        seen.append(_measured(module, tensors, limit, f"{origin}: with {count} examples"))
    _require_even(counts, seen, origin)


def _given(inputs: Sequence[InputShape | Tensor], sizes: Mapping[str, int], origin: str) -> list[Tensor]:
    try:
        return [
            value.sized(sizes) if isinstance(value, InputShape) else torch.empty_like(value, device="meta")
            for value in inputs
        ]
    except (RuntimeError, TypeError) as error:
        raise DataLossError(f"{origin}: no tensor has the shape of an input: {str(error)[:200]}") from error


def _limit(inputs: Sequence[InputShape | Tensor], tensors: Sequence[Tensor], count: int) -> int:
    fixed = sum(_bytes(value) for value in inputs if isinstance(value, Tensor))
    moving = sum(_bytes(tensor) for value, tensor in zip(inputs, tensors, strict=True) if isinstance(value, InputShape))
    return BASE_BYTES + WEIGHT_FACTOR * fixed + EXAMPLE_BYTES * count + INPUT_FACTOR * moving


def _measured(module: GraphModule, tensors: list[Tensor], limit: int | None, origin: str) -> dict[str, tuple[int, ...]]:
    """Returns name of each value of the graph -> its sizes."""
    runner = _Runner(module)
    try:
        with torch.no_grad(), _Watched(tensors, limit, origin):
            runner.run(*tensors, enable_io_processing=False)
    except OpError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise DataLossError(f"{origin} its sizes cannot be computed: {reason}") from error
    return runner.sizes


def _require_even(counts: Sequence[int], seen: Sequence[Mapping[str, tuple[int, ...]]], origin: str) -> None:
    # Other sizes could be small for the tried numbers, and huge for others.
    for name, first in seen[0].items():
        shapes = [value.get(name, ()) for value in seen]
        is_even = all(len(value) == len(first) for value in shapes) and all(
            sizes[0] + (sizes[1] - sizes[0]) * (count - counts[0]) == size
            for sizes in zip(*shapes, strict=True)
            for count, size in zip(counts, sizes, strict=True)
        )
        if not is_even:
            raise DataLossError(
                f"{origin}: the size of {name!r} does not grow evenly with the number of examples:"
                f" {', '.join(f'{list(sizes)} for {count}' for count, sizes in zip(counts, shapes, strict=True))}"
            )


class _Unknown:
    """Result of an operation that a user allowed and that cannot run on meta tensors."""


class _Runner(Interpreter):
    """Interpreter that records the sizes of every value."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.sizes: dict[str, tuple[int, ...]] = {}

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        if any(isinstance(self.env.get(source), _Unknown) for source in n.all_input_nodes):
            return _Unknown()
        try:
            result = super().run_node(n)
        except OpError:
            raise
        except Exception:
            if isinstance(n.target, OpOverload) and str(n.target).rpartition(".")[0] in user_operations():
                return _Unknown()
            raise
        for place, output in enumerate(tree_leaves(result)):
            if isinstance(output, Tensor):
                self.sizes[f"{n.name}.{place}"] = tuple(output.shape)
            elif type(output) is int:
                if output not in _INT64:
                    raise DataLossError(f"value {n.name!r}: a number of more than 64 bits")
                self.sizes[f"{n.name}.{place}"] = (output,)
        return result


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all results, including those inside an operation, and detects writes to inputs."""

    def __init__(self, inputs: Sequence[Tensor], limit: int | None, origin: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs = {_storage(tensor) for tensor in inputs}
        self._left = limit
        self._limit = limit
        self._origin = origin

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable:  # noqa: SLF001
            self._require_own(func, args)
        if "batch_norm" in func._schema.name:  # noqa: SLF001
            _require_channels(args, self._origin)
        result = func(*_without_memory(func, args, named := dict(kwargs or {})), **named)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and self._left is not None:
                self._left -= _bytes(tensor)
                if self._left < 0:
                    raise DataLossError(
                        f"{self._origin} it takes more than {self._limit} bytes, at {func} of {list(tensor.shape)}:"
                        " more than its weights and inputs account for"
                    )
        return result

    def _require_own(self, func: Any, args: tuple[Any, ...]) -> None:
        for argument, value in zip(func._schema.arguments, args, strict=False):  # noqa: SLF001
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tree_leaves(value):
                    if isinstance(tensor, Tensor) and _storage(tensor) in self._inputs:
                        raise DataLossError(f"{self._origin} {func} changes what the graph is given")


def _without_memory(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Replaces device arguments by ``meta``."""
    for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.name == "device":
            if place < len(args):
                return (*args[:place], torch.device("meta"), *args[place + 1 :])
            named["device"] = torch.device("meta")
    return args


def _require_channels(args: Sequence[Any], origin: str) -> None:
    """Checks the sizes of batch norm statistics: kernels read one number per channel without a bounds check."""
    values, *others = (argument for argument in args if isinstance(argument, Tensor))
    if values.ndim < 2 or any(argument.shape != (values.shape[1],) for argument in others):
        got = [list(argument.shape) for argument in others]
        raise DataLossError(f"{origin} a batch norm of {list(values.shape)} has {got}")


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - meta tensors have no address


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
