"""A fixed training run has the same rows and files under every instruction set and number of threads.

The fingerprint is stored: machines of another architecture, with other compilers, must find the same one. It changes
only with a change of what is computed, and such a change says so (CONTRIBUTING.md, proof of value).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from monolith import _core
from monolith.tables import HashTable, Segment, TableConfig, initializers, row_optimizers

FINGERPRINTS = {
    "rows": "ca251557e82ef86f9090315189a329fe91a0342ec6984a8f7fc02891398b017c",
    "files": "5928984834cb7e35292bd60ad8f31b208dac26054c6e670969437eec3f15390a",
}

DIMS = (16, 5, 33)
"""A row that fills vectors of every width, one that fills none, and one with a rest."""
RULES = (
    row_optimizers.Adagrad(learning_rate=0.1, weight_decay_factor=0.01),
    row_optimizers.Adam(learning_rate=0.01),
    row_optimizers.Ftrl(learning_rate=0.05),
)
BATCH = 9000
"""More ids than one task takes."""
NUM_IDS = 12_000
STEPS = 6


@pytest.fixture(autouse=True)
def core_as_before() -> Iterator[None]:
    threads, instruction_set = _core.num_threads(), _core.instruction_set()
    yield
    _core.set_num_threads(threads)
    _core.use_instruction_set(instruction_set)


def draws(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Random numbers by integer arithmetic alone (splitmix64): the same on every machine, with every numpy."""
    z = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def ids_of(ranks: npt.NDArray[np.uint64]) -> torch.Tensor:
    return torch.from_numpy(ranks.astype(np.int64) * 7_777_777_777_777)


def train() -> HashTable:
    """Some batches with ids that repeat, by several rules at once, and everything said in whole numbers."""
    segments = [
        Segment(dim, initializer=initializers.RandomUniform(-0.5, 0.5), optimizer=rule)
        for dim, rule in zip(DIMS, RULES, strict=True)
    ]
    table = HashTable(TableConfig(segments=segments))
    for step in range(STEPS):
        ids = ids_of(np.minimum(*(draws(2 * step + k, BATCH) % np.uint64(NUM_IDS) for k in range(2))))
        noise = (draws(1000 + step, BATCH * table.dim) >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - 1
        gradient = torch.from_numpy(noise.reshape(BATCH, table.dim)) + table.lookup(ids)
        table.apply_gradients(ids, gradient, time=1_700_000_000 + step)
    return table


def fingerprints(folder: Path) -> dict[str, str]:
    table = train()
    rows = hashlib.sha256(table.lookup(ids_of(np.arange(NUM_IDS, dtype=np.uint64))).numpy().tobytes())
    table.save(folder)
    (file,) = folder.glob("*.rows")
    # Head and end of a file (docs/formats/snapshot.md) have the random number of the save and checksums of it.
    files = hashlib.sha256(file.read_bytes()[28:-32])
    return {"rows": rows.hexdigest(), "files": files.hexdigest()}


@pytest.mark.parametrize("instruction_set", ["baseline", "v3", "v4"])
@pytest.mark.parametrize("threads", [1, 2, 3, 8, 16])
def test_rows_and_files_are_those_that_were_stored(instruction_set: str, threads: int, tmp_path: Path) -> None:
    if instruction_set not in _core.instruction_sets():
        pytest.skip(f"this processor has no {instruction_set}")
    _core.use_instruction_set(instruction_set)
    _core.set_num_threads(threads)
    assert fingerprints(tmp_path / "saved") == FINGERPRINTS
