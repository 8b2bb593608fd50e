from __future__ import annotations

import pytest
import torch

from monolith.tables import HashTable
from monolith.tables.compressors import Fp16, Fp32
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from monolith.testing import generate_test_hash_table_config


def test_the_default_is_one_segment_of_two_zeros_with_sgd() -> None:
    config = generate_test_hash_table_config()
    assert config.dim == 2
    (segment,) = config.segments
    assert segment.initializer == Zeros()
    assert segment.optimizer == Sgd(learning_rate=1.0)
    assert segment.compressor == Fp32()


def test_float16_changes_the_compressor_alone() -> None:
    config = generate_test_hash_table_config(use_float16=True)
    assert config.segments[0].compressor == Fp16()
    assert config.dim == generate_test_hash_table_config().dim


@pytest.mark.parametrize(("dim", "learning_rate"), [(1, 0.5), (7, 2.0)])
def test_a_table_of_it_moves_by_minus_the_rate_times_the_gradient(dim: int, learning_rate: float) -> None:
    table = HashTable(generate_test_hash_table_config(dim, learning_rate=learning_rate))
    ids = torch.tensor([3, -3])
    gradients = torch.arange(2.0 * dim).reshape(2, dim)
    table.apply_gradients(ids, gradients)
    assert torch.equal(table.lookup(ids), -learning_rate * gradients)


def test_a_wrong_dim_is_refused() -> None:
    with pytest.raises(ValueError, match="dim must be > 0, got 0"):
        generate_test_hash_table_config(dim=0)
