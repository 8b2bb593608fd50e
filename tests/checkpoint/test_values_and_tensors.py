"""Plain values as JSON, tensors as safetensors, and manifests that are exactly themselves."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.runs import Run
from monolith.checkpoint import Manifest, Saver
from monolith.checkpoint.tensor_file import FileSum, read_tensors, sum_of, write_tensors
from monolith.checkpoint.value_tree import TreeEncoder, decode
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.files.storage import PIECE_BYTES, LocalStorage
from monolith.testing import FakeClock

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.just("@"), inner, max_size=4)
        | st.dictionaries(st.integers() | st.tuples(st.integers()), inner, max_size=3)
        | st.dictionaries(st.integers(), st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@given(plain)
def test_any_plain_value_round_trips_through_json(value: Any) -> None:
    encoder = TreeEncoder()
    text = json.dumps(encoder.encode(value, "v"), allow_nan=False)
    assert same(decode(json.loads(text), encoder.tensors), value)
    assert encoder.tensors == {}


def test_tensors_are_stored_once_and_arrays_are_decoded_as_arrays() -> None:
    encoder = TreeEncoder()
    shared = torch.arange(6.0).reshape(2, 3)
    value = {"a": shared, "b": [shared, shared[0]], "n": np.arange(3, dtype=np.int16), "s": np.float32(0.5)}
    tree = encoder.encode(value, "v")
    assert sorted(encoder.tensors) == ["v/a", "v/b/1", "v/n"]
    back = decode(json.loads(json.dumps(tree)), encoder.tensors)
    assert back["b"][0] is back["a"]
    assert back["n"].dtype == np.int16
    assert back["s"] == 0.5
    assert type(back["s"]) is float


def test_what_cannot_be_saved_is_named() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"'v/a/1' is a function, which cannot be saved; state dict.* may hold"
    ):
        TreeEncoder().encode({"a": [1, test_what_cannot_be_saved_is_named]}, "v")
    clash = {"a": {"b": torch.zeros(1)}, "a/b": torch.zeros(1)}
    with pytest.raises(InvalidArgumentError, match="two tensors have the name 'v/a/b'"):
        TreeEncoder().encode(clash, "v")


@pytest.mark.parametrize(
    "value", [{"@": "pickle"}, {"@": "tensor", "name": "x"}, {"@": "tuple"}, {"@": 3}, {"@": "float"}]
)
def test_foreign_trees_are_refused(value: Any) -> None:
    with pytest.raises(DataLossError, match="is not a saved value"):
        decode(value, {})


ALL = {
    "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 3),
    "strided": torch.arange(12.0).reshape(3, 4).t(),
    "half": torch.tensor([1.0, -2.0], dtype=torch.float16),
    "brain": torch.tensor([[1.0], [3.5]], dtype=torch.bfloat16),
    "double": torch.tensor([math.pi], dtype=torch.float64),
    "flags": torch.tensor([True, False, True]),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "longs": torch.tensor([-(2**63), 2**63 - 1]),
    "name with . / and é": torch.zeros(2, dtype=torch.int32),
}


def test_our_files_are_read_by_the_safetensors_package_and_its_by_us(tmp_path: Path) -> None:
    folder = LocalStorage(tmp_path)
    total = write_tensors(folder, "ours", ALL)
    theirs = safetensors.torch.load_file(tmp_path / "ours")
    assert theirs.keys() == ALL.keys()
    for name, tensor in ALL.items():
        assert theirs[name].dtype == tensor.dtype
        assert torch.equal(theirs[name], tensor)
    ours = read_tensors(folder, "ours", total)
    assert all(torch.equal(ours[name], tensor) for name, tensor in ALL.items())

    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in ALL.items()}, tmp_path / "theirs")
    back = read_tensors(folder, "theirs", sum_of((tmp_path / "theirs").read_bytes()))
    assert all(torch.equal(back[name], tensor) for name, tensor in ALL.items())


def test_large_tensors_pass_in_pieces(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(PIECE_BYTES // 4 + 7), "b": torch.arange(PIECE_BYTES // 2, dtype=torch.int64)}
    total = write_tensors(LocalStorage(tmp_path), "file", tensors)
    assert total == sum_of((tmp_path / "file").read_bytes())
    back = read_tensors(LocalStorage(tmp_path), "file", total)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_the_checksum_is_as_documented(tmp_path: Path) -> None:
    """docs/formats/checkpoint.md: CRC-32C over the little-endian CRC-32Cs of pieces of 4 MiB."""
    import crc32c  # noqa: PLC0415 - an independent implementation

    data = np.random.default_rng(1).bytes(9 * 1024 * 1024 + 5)
    sums = b"".join(
        crc32c.crc32c(data[begin : begin + 4194304]).to_bytes(4, "little") for begin in range(0, len(data), 4194304)
    )
    assert sum_of(data) == FileSum(bytes=len(data), crc32c=crc32c.crc32c(sums))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"not json",
        b"[]",
        b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"a":{"shape":[1]}}',
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, header: bytes) -> None:
    data = len(header).to_bytes(8, "little") + header + b"\0\0\0\0"
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(DataLossError, match=r"/file': not a safetensors file"):
        read_tensors(LocalStorage(tmp_path), "file", sum_of(data))


def test_sparse_and_quantised_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'a' .*sparse_coo.* cannot be saved"):
        write_tensors(LocalStorage(tmp_path), "file", {"a": torch.zeros(2).to_sparse()})
    with pytest.raises(InvalidArgumentError, match=r"complex128.* cannot be saved"):
        write_tensors(LocalStorage(tmp_path), "file", {"a": torch.zeros(2, dtype=torch.complex128)})
    assert not list(tmp_path.iterdir())


def test_equal_runs_have_equal_manifests_and_descriptions(tmp_path: Path) -> None:
    """What a deterministic graph was to the original."""
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        run = Run()
        run.steps(3)
        with Saver(folder, clock=FakeClock(now=1000.0)) as saver:
            saver.save(run.state)
        names = sorted(path for path in folder.rglob("model.*/**/*") if path.is_file()) + sorted(folder.glob("model.*"))
        written.append({path.relative_to(folder): path.read_bytes() for path in names if path.is_file()})
    assert written[0] == written[1]
    assert len(written[0]) == 5


def test_manifests_round_trip_and_any_change_is_detected(tmp_path: Path) -> None:
    run = Run()
    run.steps(2)
    run.state.positions |= {"binary": b"\xff\x00", "empty": b""}
    with Saver(tmp_path) as saver:
        saver.save(run.state)
    text = (tmp_path / "model.ckpt-2.manifest").read_bytes()
    manifest = Manifest.from_bytes(text, origin="m")
    assert manifest.to_bytes() == text
    assert manifest.positions == {"binary": b"\xff\x00", "empty": b""}
    assert manifest.applied[0].position == b"2"
    assert (manifest.step, manifest.generation, manifest.kind) == (2, 1, "full")
    assert sum(manifest.tables["emb"].rows.values()) == run.model.emb.num_rows
    for offset in range(0, len(text), 97):
        changed = text[:offset] + bytes([text[offset] ^ 2]) + text[offset + 1 :]
        with pytest.raises(DataLossError, match=r"^m: "):
            Manifest.from_bytes(changed, origin="m")
    half: Any = "half"
    with pytest.raises(DataLossError, match="kind is 'half'"):
        Manifest.from_bytes(replace(manifest, kind=half).to_bytes(), origin="m")
    with pytest.raises(DataLossError, match="version 3, this build reads versions up to 2"):
        Manifest.from_bytes(text.replace(b'"version": 2', b'"version": 3'), origin="m")
    with pytest.raises(DataLossError, match="not in canonical form"):
        Manifest.from_bytes(text + b"\n", origin="m")


def test_the_description_of_a_model(tmp_path: Path) -> None:
    run = Run()
    with Saver(tmp_path) as saver:
        saver.save(run.state)
    meta = json.loads((tmp_path / "model.ckpt-0.meta").read_text())
    assert meta["modules"]["tower.0"] == "torch.nn.modules.linear.Linear"
    assert meta["weights"]["tower.0.weight"] == {"dtype": "F32", "shape": [6, 8]}
    assert meta["slots"]["emb"]["user"]["dim"] == 4
    assert meta["optimizers"] == {"adam": "torch.optim.adam.Adam"}
