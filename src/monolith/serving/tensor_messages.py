"""Converts tensors to and from TensorFlow's messages, with validation of untrusted input.

A message has a shape and values, as bytes or as a list that may be shorter than the shape. It is not trusted: the shape
must fit the values, and a list shorter than its shape is expanded only up to a limit.

    message_of(torch.tensor([[1.0, 2.0]]))      dtype DT_FLOAT, shape [1, 2], tensor_content of 8 bytes
    message_of([b"a", b"bc"])                   dtype DT_STRING, shape [2], string_val
    value_of(message, name="clicks")            the tensor again; an array of bytes objects for DT_STRING

`METHODS` are the calls of TensorFlow Serving that this library serves and makes, with TensorFlow's paths. Messages are
in a package of this library, so that ``tensorflow-serving-api`` can be imported in the same process; the package name
is not sent. `add_health` adds the standard gRPC health service.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from google.protobuf.any_pb2 import Any as AnyMessage

from monolith.errors import InvalidArgumentError
from monolith.serving.protos import prediction_service_pb2 as calls
from monolith.serving.protos import tensor_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from google.protobuf.message import Message

Strings: TypeAlias = "npt.NDArray[np.object_]"
"""Array of bytes objects."""

_LISTS: Final[dict[messages.DataType, tuple[torch.dtype, str, str]]] = {
    messages.DT_FLOAT: (torch.float32, "float_val", "<f4"),
    messages.DT_DOUBLE: (torch.float64, "double_val", "<f8"),
    messages.DT_INT32: (torch.int32, "int_val", "<i4"),
    messages.DT_UINT8: (torch.uint8, "int_val", "<u1"),
    messages.DT_INT16: (torch.int16, "int_val", "<i2"),
    messages.DT_INT8: (torch.int8, "int_val", "<i1"),
    messages.DT_COMPLEX64: (torch.complex64, "scomplex_val", "<f4"),
    messages.DT_INT64: (torch.int64, "int64_val", "<i8"),
    messages.DT_BOOL: (torch.bool, "bool_val", "|b1"),
    messages.DT_BFLOAT16: (torch.bfloat16, "half_val", "<u2"),
    messages.DT_UINT16: (torch.uint16, "int_val", "<u2"),
    messages.DT_COMPLEX128: (torch.complex128, "dcomplex_val", "<f8"),
    messages.DT_HALF: (torch.float16, "half_val", "<u2"),
    messages.DT_UINT32: (torch.uint32, "uint32_val", "<u4"),
    messages.DT_UINT64: (torch.uint64, "uint64_val", "<u8"),
}
"""Number on the wire -> dtype, the list field for the values, and the type of its items; DT_STRING has none."""
DTYPES: Final = {number: dtype for number, (dtype, _, _) in _LISTS.items()}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}

_MOST_DIMS = 16
_EXPANDED_BYTES = 64 << 20
"""Maximum size of an expanded list: a message of a few bytes must not exhaust memory."""


def message_of(value: torch.Tensor | npt.NDArray[Any] | Sequence[bytes]) -> messages.TensorProto:
    """Encodes a tensor, an array or a list of bytes objects as a message; numbers are sent as bytes."""
    if isinstance(value, torch.Tensor):
        return _number_message(value)
    array = value if isinstance(value, np.ndarray) else _strings(value)
    if array.dtype.kind in "OS":
        return _string_message(array)
    try:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
    except TypeError as error:
        raise InvalidArgumentError(f"tensor: an array of {array.dtype} has no form in a message") from error
    return _number_message(tensor.reshape(array.shape))


def value_of(message: messages.TensorProto, *, name: str = "tensor") -> torch.Tensor | Strings:
    """Decodes the values of a message; the result owns its memory."""
    shape = shape_of(message.tensor_shape, name=name)
    if message.dtype == messages.DT_STRING:
        return _strings_in(message, shape, name)
    if message.dtype not in _LISTS:
        raise InvalidArgumentError(f"{name}: a tensor of numbers or bytes expected, got {dtype_name(message.dtype)}")
    data = _content(message, shape, name) if message.tensor_content else _list_items(message, shape, name).tobytes()
    dtype = DTYPES[message.dtype]
    if not data:
        return torch.empty(shape, dtype=dtype)
    if dtype is torch.bool:
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) != 0
    else:
        flat = torch.frombuffer(bytearray(data), dtype=dtype)
    return flat if len(shape) == 1 else flat.reshape(shape)


def strings_of(message: messages.TensorProto, *, name: str = "tensor") -> list[bytes]:
    """Decodes the bytes objects of a message of at most one dimension."""
    shape, strings = message.tensor_shape, message.string_val
    is_plain = message.dtype == messages.DT_STRING and not shape.unknown_rank and not message.tensor_content
    if is_plain and len(shape.dim) == 1 and shape.dim[0].size == len(strings):
        return list(strings)
    values = value_of(message, name=name)
    if isinstance(values, torch.Tensor):
        raise InvalidArgumentError(f"{name}: bytes expected, got {dtype_name(message.dtype)}")
    if values.ndim > 1:
        raise InvalidArgumentError(f"{name}: bytes must have one dim, got {values.ndim}")
    return list(values.reshape(-1))


def shape_of(message: messages.TensorShapeProto, *, name: str = "tensor") -> tuple[int, ...]:
    """Decodes the fully defined shape of a received tensor."""
    if message.unknown_rank:
        raise InvalidArgumentError(f"{name}: a shape expected, got a tensor of unknown rank")
    shape = tuple([dim.size for dim in message.dim])
    if len(shape) > _MOST_DIMS or min(shape, default=0) < 0 or math.prod([max(size, 1) for size in shape]) >= 1 << 62:
        shown = ", ".join(map(str, shape[:_MOST_DIMS]))
        raise InvalidArgumentError(
            f"{name}: a shape of at most {_MOST_DIMS} known dims expected, got {len(shape)}: [{shown}]"
        )
    return shape


def shape_message(shape: Sequence[int | None]) -> messages.TensorShapeProto:
    """Encodes a shape as a message; None stands for a dimension of any size."""
    dims = [messages.TensorShapeProto.Dim(size=-1 if size is None else size) for size in shape]
    return messages.TensorShapeProto(dim=dims)


def dtype_number(dtype: torch.dtype | None) -> messages.DataType:
    """Returns the number of a dtype on the wire; None stands for bytes."""
    return messages.DT_STRING if dtype is None else _NUMBERS[dtype]


def dtype_name(number: int) -> str:
    """Returns TensorFlow's name of a type, such as ``DT_FLOAT``."""
    return messages.DataType.Name(number) if number in messages.DataType.values() else f"data type {number}"


# Encoding


def _number_message(tensor: torch.Tensor) -> messages.TensorProto:
    number = _NUMBERS.get(tensor.dtype)
    if number is None:
        raise InvalidArgumentError(f"tensor: {tensor.dtype} has no form in a message")
    try:
        content = tensor.numpy().tobytes()  # one call of torch: its code is rarely in the cache of a server
    except (RuntimeError, TypeError):  # on another device, with a gradient, lazily negated, or of a type of torch alone
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content = ctypes.string_at(plain.data_ptr(), plain.nbytes) if plain.numel() else b""
    return messages.TensorProto(dtype=number, tensor_shape=shape_message(tensor.shape), tensor_content=content)


def _strings(values: Sequence[bytes]) -> Strings:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _string_message(array: npt.NDArray[Any]) -> messages.TensorProto:
    values = array.ravel().tolist()
    wrong = next((value for value in values if not isinstance(value, bytes)), None)
    if wrong is not None:
        raise InvalidArgumentError(f"tensor: bytes expected in an array of objects, got {type(wrong).__name__}")
    return messages.TensorProto(dtype=messages.DT_STRING, tensor_shape=shape_message(array.shape), string_val=values)


# Decoding


def _content(message: messages.TensorProto, shape: tuple[int, ...], name: str) -> bytes:
    expected = math.prod(shape) * DTYPES[message.dtype].itemsize
    content = message.tensor_content
    if len(content) != expected:
        raise InvalidArgumentError(
            f"{name}: {expected} bytes expected for {list(shape)} of {dtype_name(message.dtype)}, got {len(content)}"
        )
    return content


def _list_items(message: messages.TensorProto, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Returns all items of the list; missing ones repeat the last item, or are zero if the list is empty."""
    _, field, kind = _LISTS[message.dtype]
    numbers = np.array(getattr(message, field), "<i4" if field in ("int_val", "half_val") else kind)
    items = numbers.astype(kind)
    if field == "int_val" and (items != numbers).any():
        raise InvalidArgumentError(f"{name}: {field} has a value that {dtype_name(message.dtype)} cannot hold")
    width = 2 if DTYPES[message.dtype].is_complex else 1
    if len(items) % width:
        raise InvalidArgumentError(f"{name}: pairs of numbers expected in {field}, got {len(items)} numbers")
    count = math.prod(shape)
    _require_fit(len(items) // width, count, DTYPES[message.dtype].itemsize, name)
    if len(items) == count * width:
        return items
    expanded = np.zeros((count, width), kind)
    rows = items.reshape(-1, width)
    if len(rows):
        expanded[: len(rows)] = rows
        expanded[len(rows) :] = rows[-1]
    return expanded.reshape(-1)


def _strings_in(message: messages.TensorProto, shape: tuple[int, ...], name: str) -> Strings:
    values = _split_strings(message.tensor_content, shape, name) if message.tensor_content else list(message.string_val)
    count = math.prod(shape)
    _require_fit(len(values), count, 8, name)
    values += [values[-1] if values else b""] * (count - len(values))
    return _strings(values).reshape(shape)


def _require_fit(actual: int, expected: int, item_bytes: int, name: str) -> None:
    if actual > expected:
        raise InvalidArgumentError(f"{name}: {expected} values expected by its shape, got {actual}")
    if actual < expected and expected * item_bytes > _EXPANDED_BYTES:
        raise InvalidArgumentError(
            f"{name}: {expected} values expected by its shape, got {actual}; one value stands for others up to"
            f" {_EXPANDED_BYTES >> 20} MiB alone"
        )


def _split_strings(content: bytes, shape: tuple[int, ...], name: str) -> list[bytes]:
    """Splits TensorFlow's packed strings: the length of each as a varint, then the bytes of all."""
    count = math.prod(shape)
    ends = [0]
    at = 0
    for _ in range(min(count, len(content))):
        length, at = _varint(content, at)
        ends.append(ends[-1] + length)
    if len(ends) != count + 1 or at + ends[-1] != len(content):
        raise InvalidArgumentError(f"{name}: tensor_content does not hold the {count} strings of its shape")
    return [content[at + begin : at + end] for begin, end in pairwise(ends)]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Decodes a varint of at most five bytes and returns the next offset; an unterminated one exceeds any content."""
    number = 0
    for shift, byte in enumerate(content[at : at + 5]):
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return number, at + shift + 1
    return len(content) + 1, len(content)


PREDICTION_SERVICE: Final = "tensorflow.serving.PredictionService"
MODEL_SERVICE: Final = "tensorflow.serving.ModelService"

_SIGNATURES_TYPE = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


class WireMethod(NamedTuple):
    """Request and response types of a method."""

    request: type[Message]
    response: type[Message]


METHODS: Final[dict[str, dict[str, WireMethod]]] = {
    PREDICTION_SERVICE: {
        "Predict": WireMethod(calls.PredictRequest, calls.PredictResponse),
        "GetModelMetadata": WireMethod(calls.GetModelMetadataRequest, calls.GetModelMetadataResponse),
    },
    MODEL_SERVICE: {"GetModelStatus": WireMethod(calls.GetModelStatusRequest, calls.GetModelStatusResponse)},
}
"""Service -> its methods; gRPC answers others with UNIMPLEMENTED."""

OWN_NAMES: Final = {
    service: service.replace("tensorflow.serving", "monolith.tf.serving")
    for service in (PREDICTION_SERVICE, MODEL_SERVICE)
}
"""Service -> its name in ``protos/serving``, used by clients generated from it."""


def path_of(service: str, method: str) -> str:
    """Returns the path of a method on the wire."""
    return f"/{service}/{method}"


def packed_signatures(signatures: calls.SignatureDefMap) -> AnyMessage:
    """Returns the value of ``signature_def`` in the metadata of a model, with TensorFlow's type name."""
    return AnyMessage(type_url=_SIGNATURES_TYPE, value=signatures.SerializeToString(deterministic=True))


def add_health(server: Any, why_not_ready: Callable[[], str | None]) -> Any:
    """Adds the service to a grpcio server; callers need no token.

    Returns:
        The servicer; its `enter_graceful_shutdown` reports NOT_SERVING from then on.
    """
    health, messages = _module("health"), _module("health_pb2")

    class Health(health.HealthServicer):  # type: ignore[misc, name-defined]  # imported on first use
        """Reports SERVING while the server is ready."""

        def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            status = messages.HealthCheckResponse
            state = status.SERVING if why_not_ready() is None else status.NOT_SERVING
            for service in ("", PREDICTION_SERVICE, MODEL_SERVICE):
                self.set(service, state)
            return super().Check(request, context)

    servicer = Health()
    _module("health_pb2_grpc").add_HealthServicer_to_server(servicer, server)
    return servicer


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"grpc_health.v1.{name}")
    except ModuleNotFoundError as error:
        message = f"the server needs {error.name}; run: pip install 'monolith-torch[serving]'"
        raise ModuleNotFoundError(message, name=error.name) from error
