from __future__ import annotations

import numpy as np
import pytest
import torch

from monolith.cli._bench import workload
from monolith.cli._bench.setting import Setting

SETTING = Setting(examples=64, features=26, num_batches=3)


@pytest.mark.slow
def test_every_row_number_has_an_id_of_its_own() -> None:
    assert len(np.unique(workload.mixed_ids(np.arange(1_000_000)))) == 1_000_000


def test_ids_spread_evenly_over_low_and_high_bits() -> None:
    ids = workload.mixed_ids(np.arange(1 << 20)).view(np.uint64)
    for shift in (0, 20, 54):
        counts = np.bincount(((ids >> np.uint64(shift)) & np.uint64(1023)).astype(np.int64), minlength=1024)
        assert 800 < counts.min() <= counts.max() < 1300, f"bits {shift}.. are not well mixed"


def test_ids_stand_for_the_rows_that_static_tables_are_given() -> None:
    for batches in (workload.zipf_batches(SETTING, 1000), workload.uniform_batches(SETTING, 1000)):
        assert len(batches) == SETTING.num_batches
        for batch in batches:
            assert batch.rows.shape == batch.ids.shape == (SETTING.ids_per_batch,)
            assert torch.equal(torch.from_numpy(workload.mixed_ids(batch.rows.numpy())), batch.ids)
            assert int(batch.rows.min()) >= 0
            assert int(batch.rows.max()) < 1000


def test_batches_differ_from_each_other_and_repeat_from_run_to_run() -> None:
    first, second = workload.zipf_batches(SETTING, 1000), workload.zipf_batches(SETTING, 1000)
    assert not torch.equal(first[0].rows, first[1].rows)
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("num_rows", [1, 2, 1000])
def test_zipf_ranks_stay_inside_the_table(num_rows: int) -> None:
    ranks = workload.zipf_ranks(np.random.default_rng(0), num_rows=num_rows, count=10_000)
    assert ranks.min() >= 0
    assert ranks.max() < num_rows


def test_zipf_ranks_follow_the_continuous_law() -> None:
    num_rows, count = 100_000, 400_000
    ranks = workload.zipf_ranks(np.random.default_rng(0), num_rows=num_rows, count=count)
    # Mass of [1, k + 1) under density x^-1.05 on [1, num_rows].
    edges = np.array([2.0, 11.0, 101.0, 1001.0])
    expected = (1 - edges**-0.05) / (1 - num_rows**-0.05)
    observed = [(ranks < edge - 1).mean() for edge in edges]
    np.testing.assert_allclose(observed, expected, atol=4 / np.sqrt(count))
