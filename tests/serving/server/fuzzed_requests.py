"""Requests that are wrong in many ways, each a function of its number."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.tensor_messages import message_of

__all__ = ["HttpRequest", "fuzzed_call", "fuzzed_http"]

PATH = "/v1/models/ranker:predict"
EXTREMES: list[Any] = [
    *(0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**64), 10**400),
    *(1.5, -0.0, 1e39, 1e308, 1e-320, math.nan, math.inf, -math.inf),
    *(None, True, "", "7", "\x00", "\ud800", {}, [], [[]], {"b64": "%%"}, {"b64": "AAEC"}, {"b64": 5}),
]


class HttpRequest(NamedTuple):
    """One over HTTP."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]


def fuzzed_http(number: int, good: dict[str, Any]) -> HttpRequest:
    """A request made of a good one."""
    chance = random.Random(number)  # noqa: S311 - repeats by its number
    body = copy.deepcopy(good)
    path, method, headers = PATH, "POST", {}
    for _ in range(chance.choice((1, 1, 2, 3))):
        chance.choice(_STRUCTURE)(body, chance)
    data = json.dumps(body).encode()
    kind = chance.random()
    if kind < 0.35:
        data = _damaged(data, chance)
    elif kind < 0.40:
        data = chance.choice((b"[", b'{"a":', b"[{", b'{"inputs":[')) * chance.choice((10, 40, 20_000))
    elif kind < 0.50:
        path = chance.choice(
            (
                "/v1/models/ranker/versions/99:predict",
                "/v1/models/ranker/versions/99999999999999999999:predict",
                "/v1/models/ranker/versions/-1:predict",
                "/v1/models/ranker/labels/none:predict",
                "/v1/models/%2e%2e/%00:predict",
                "/v1/models/other:predict",
                "/v1/models/ranker:regress",
                "/v1/models/ranker/metadata",
                "/" + "x" * chance.choice((1, 3000)),
            )
        )
    elif kind < 0.53:
        method = chance.choice(("GET", "PUT", "DELETE", "OPTIONS", "POST"))
    elif kind < 0.56:
        headers["x-timeout-ms"] = chance.choice(("nan", "-1", "1e9", "soon", "0", "60000"))
    return HttpRequest(method, path, data, headers)


def fuzzed_call(number: int, good: dict[str, Any]) -> bytes:
    """The bytes of a `PredictRequest` made of good inputs."""
    chance = random.Random(number)  # noqa: S311 - repeats by its number
    inputs = dict(good)
    spec = messages.ModelSpec(name="ranker")
    kind = chance.random()
    if kind < 0.1:
        spec.name = chance.choice(("", "other", "ranker:ps_0", "x" * 5000))
    elif kind < 0.2:
        spec.signature_name = chance.choice(("other", "serving_default", "\x00", "x" * 5000))
    elif kind < 0.25:
        spec.version.value = chance.choice((0, 1, 99, -1, 2**63 - 1, -(2**63)))
    elif kind < 0.3:
        spec.version_label = chance.choice(("", "stable", "x" * 5000))
    request = messages.PredictRequest(model_spec=spec)
    for _ in range(chance.choice((0, 1, 1, 2))):
        _change_inputs(inputs, chance)
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(message_of(values))
    if chance.random() < 0.3:
        _change_tensor(request, chance)
    if chance.random() < 0.1:
        request.output_filter.append(chance.choice(("score", "vector", "nothing", "")))
    data = request.SerializeToString()
    return _damaged(data, chance) if chance.random() < 0.5 else data


def _damaged(data: bytes, chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.4:
        flipped = bytearray(data)
        for _ in range(chance.choice((1, 1, 3, 16))):
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    if kind < 0.7:
        return data[: chance.randrange(len(data))]
    begin, end = sorted(chance.randrange(len(data)) for _ in range(2))
    if kind < 0.85:
        return data[:begin] + data[end:]
    return data[:end] + data[begin:]


def _column(body: dict[str, Any], chance: random.Random) -> tuple[dict[str, Any], str]:
    columns = body.get("inputs")
    if not isinstance(columns, dict) or not columns:
        body.clear()
        body["inputs"] = columns = {"user": [1], "item": [[1, 2, 3]]}
    return columns, chance.choice(sorted(columns))


def _set_value(body: dict[str, Any], chance: random.Random) -> None:
    columns, name = _column(body, chance)
    values = columns[name]
    if isinstance(values, list) and values:
        place = chance.randrange(len(values))
        if isinstance(values[place], list) and values[place] and chance.random() < 0.7:
            values[place][chance.randrange(len(values[place]))] = chance.choice(EXTREMES)
        else:
            values[place] = chance.choice(EXTREMES)
    else:
        columns[name] = chance.choice(EXTREMES)


def _drop(body: dict[str, Any], chance: random.Random) -> None:
    columns, name = _column(body, chance)
    del columns[name]


def _add(body: dict[str, Any], chance: random.Random) -> None:
    columns, name = _column(body, chance)
    extra = chance.choice(
        ("", "age", "user/values", "tags/row_splits", "examples", "example_batch", "\x00", "x" * 5000)
    )
    columns[extra] = copy.deepcopy(columns[name]) if chance.random() < 0.5 else chance.choice(EXTREMES)


def _resize(body: dict[str, Any], chance: random.Random) -> None:
    columns, name = _column(body, chance)
    values = columns[name]
    if isinstance(values, list):
        columns[name] = chance.choice((values[:-1], values + values, values[:1], [], [values], values * 40))


def _retype(body: dict[str, Any], chance: random.Random) -> None:
    columns, name = _column(body, chance)
    columns[name] = chance.choice(EXTREMES)


def _encode(body: dict[str, Any], chance: random.Random) -> None:
    sample = {"b64": chance.choice(("", "GAE=", "GP///////////wE=", "CgV1c2Vy", "AAAA", "////"))}
    name = chance.choice(("examples", "instances", "example_batch"))
    body.clear()
    body["inputs"] = {name: sample if chance.random() < 0.5 else [sample] * chance.choice((1, 3))}


def _rename(body: dict[str, Any], chance: random.Random) -> None:
    body["signature_name"] = chance.choice(("other", "serving_default", "", 3, None, [], "x" * 5000))


def _restructure(body: dict[str, Any], chance: random.Random) -> None:
    columns, _ = _column(body, chance)
    lists = [each for each in columns.values() if isinstance(each, list)]
    length = min(map(len, lists), default=0)
    rows = [{name: each[row] for name, each in columns.items() if isinstance(each, list)} for row in range(length)]
    if rows and chance.random() < 0.5:
        wrong: list[Any] = [{}, [], 3, {"user": 1}]
        rows[chance.randrange(len(rows))] = chance.choice(wrong)
    del body["inputs"]
    body["instances"] = rows


_STRUCTURE: list[Callable[[dict[str, Any], random.Random], None]] = [
    *(_set_value, _set_value, _set_value, _drop, _add, _resize, _retype, _encode, _rename, _restructure),
]


def _change_inputs(inputs: dict[str, Any], chance: random.Random) -> None:
    if not inputs:
        return
    name = chance.choice(sorted(inputs))
    values = inputs[name]
    choices: list[Any] = [
        [b"a", b""],
        torch.zeros(0, dtype=torch.int64),
        torch.tensor(7),
        torch.zeros(2, 0, 3),
        torch.full((2,), math.nan),
        torch.full((2, 2), math.inf),
        torch.tensor([2**63 - 1, -(2**63)]),
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(3, dtype=torch.int32),
        torch.zeros(3, dtype=torch.float64),
        torch.zeros(20_000, dtype=torch.int64),
    ]
    kind = chance.random()
    if kind < 0.2:
        del inputs[name]
    elif kind < 0.4:
        inputs[chance.choice(("age", "", "examples", "example_batch", "instances", "tags", "x" * 3000))] = values
    elif kind < 0.6 and isinstance(values, torch.Tensor) and values.ndim:
        inputs[name] = chance.choice((values[:-1], torch.cat([values, values]), values.reshape(-1), values[None]))
    else:
        inputs[name] = chance.choice(choices)


def _change_tensor(request: messages.PredictRequest, chance: random.Random) -> None:
    """What no library would write: numbers that do not go with shapes, types that do not go with numbers."""
    if not request.inputs:
        return
    tensor: Any = request.inputs[chance.choice(sorted(request.inputs))]
    kind = chance.random()
    if kind < 0.4:
        for dim in tensor.tensor_shape.dim:
            dim.size = chance.choice((0, -1, 1, 2**31, 2**62, -(2**63)))
    elif kind < 0.6:
        tensor.dtype = chance.choice((0, 1, 3, 7, 9, 19, 20, 101))
    elif kind < 0.8:
        tensor.tensor_content = tensor.tensor_content[:-1] or b"abc"
    else:
        tensor.int64_val.extend([1, 2, 3])
        tensor.tensor_shape.unknown_rank = chance.random() < 0.5
