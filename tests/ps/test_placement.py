"""Every row of the weights lies on exactly one server, servers are loaded alike, and no order matters."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.errors import InvalidArgumentError
from monolith.ps.dense.layout import LARGEST_PIECE_BYTES, WeightInfo, WeightShard, place

DTYPES = ["float32", "float64", "bfloat16"]
ROWS = LARGEST_PIECE_BYTES // 4  # of one float32 each: a weight of exactly the limit


def model(rng: np.random.Generator, size: int) -> list[WeightInfo]:
    shapes: list[tuple[int, ...]] = [
        (),
        (0,),
        (3, 0),
        (1,),
        (7,),
        (ROWS + 1,),
        (5, ROWS),
        (1000, 64),
        (4096, 40),
        (64, 64),
    ]
    return [
        WeightInfo(name=f"w{number}", shape=shapes[rng.integers(len(shapes))], dtype=str(rng.choice(DTYPES)))
        for number in range(size)
    ]


def pieces_of(placed: tuple[tuple[WeightShard, ...], ...], name: str) -> list[WeightShard]:
    return [piece for server in placed for piece in server if piece.name == name]


@pytest.mark.parametrize("num_ps", [1, 2, 3, 5, 16])
def test_every_row_lies_on_exactly_one_server(num_ps: int) -> None:
    weights = model(np.random.default_rng(3), 60)
    placed = place(weights, num_ps)
    for weight in weights:
        found = sorted(pieces_of(placed, weight.name), key=lambda piece: piece.begin or 0)
        if len(found) == 1:
            assert (found[0].begin, found[0].shape) == (None, weight.shape)
            continue
        assert len({piece.server for piece in found}) == len(found) <= num_ps
        assert [row for piece in found for row in range(weight.shape[0])[piece.rows]] == list(range(weight.shape[0]))
        assert {piece.shape[1:] for piece in found} == {weight.shape[1:]}


def test_a_piece_records_which_server_it_is_on() -> None:
    placed = place(model(np.random.default_rng(4), 30), 4)
    assert all(piece.server == number for number, server in enumerate(placed) for piece in server)


def test_only_what_is_above_the_limit_is_divided() -> None:
    placed = place([WeightInfo(name="at", shape=(ROWS,)), WeightInfo(name="above", shape=(ROWS + 1,))], 4)
    assert len(pieces_of(placed, "at")) == 1
    assert [piece.shape for piece in pieces_of(placed, "above")] == [(ROWS // 2,), (ROWS // 2 + 1,)]


def test_a_weight_has_at_most_as_many_pieces_as_servers_and_rows() -> None:
    placed = place([WeightInfo(name="long", shape=(100 * ROWS,)), WeightInfo(name="flat", shape=(2, 8 * ROWS))], 3)
    assert len(pieces_of(placed, "long")) == 3
    assert len(pieces_of(placed, "flat")) == 2


def test_indivisible_weights_are_never_split() -> None:
    weights = [WeightInfo(name="whole", shape=(10 * ROWS,), is_divisible=False)]
    assert len(pieces_of(place(weights, 3), "whole")) == 1
    assert len(pieces_of(place([WeightInfo(name="w", shape=(10 * ROWS,))], 3, partition=False), "w")) == 1


def test_the_order_of_the_weights_does_not_matter() -> None:
    weights = model(np.random.default_rng(5), 40)
    shuffled = [weights[place] for place in np.random.default_rng(6).permutation(len(weights))]
    assert place(weights, 3) == place(shuffled, 3)


def test_servers_are_loaded_alike() -> None:
    weights = [WeightInfo(name=f"w{number}", shape=(100 + number,)) for number in range(200)]
    loads = [sum(piece.bytes for piece in server) for server in place(weights, 4)]
    assert max(loads) - min(loads) <= 4 * 300


def test_pieces_are_aligned_one_after_another_whichever_are_skipped() -> None:
    for server in place(model(np.random.default_rng(7), 60), 3):
        sizes = [piece.torch_dtype.itemsize for piece in server]
        assert sizes == sorted(sizes, reverse=True)


def test_what_no_optimizer_moves_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"parameter 'count': servers keep .* float32.*, got int64"):
        WeightInfo(name="count", shape=(3,), dtype="int64")


def test_there_must_be_a_server() -> None:
    with pytest.raises(InvalidArgumentError, match="num_ps must be >= 1, got 0"):
        place([], 0)
