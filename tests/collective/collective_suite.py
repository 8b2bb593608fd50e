"""What holds of the collective calls with any number of processes.

Each ``case_...`` runs on all ranks together. `test_collective.py` runs them in its own process, a run of one; as a
program, started as one rank of several, this file runs them all and writes what came out of each, a file a rank.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from monolith import collective
from monolith.errors import InvalidArgumentError
from monolith.hooks import BroadcastGlobalVariablesHook
from monolith.testing import StepLoop

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    left, right = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right))
    return torch.equal(left, right)


def case_every_rank_is_there_once(rank: int, size: int) -> None:
    assert (collective.rank(), collective.size()) == (rank, size)
    assert collective.allgather(torch.tensor([rank])).tolist() == list(range(size))


def case_rows_come_in_the_order_of_ranks_whatever_their_number(rank: int, size: int) -> None:
    rows = torch.full((rank + 1, 2, 3), float(rank))
    want = torch.cat([torch.full((other + 1, 2, 3), float(other)) for other in range(size)])
    assert same_bits(collective.allgather(rows), want)


def case_a_rank_without_rows_adds_none(rank: int, size: int) -> None:
    rows = torch.ones(0 if rank == 0 else 2, 3)
    assert collective.allgather(rows).shape == (2 * (size - 1), 3)
    assert collective.allgather(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3)
    assert collective.allgather(torch.empty(2, 0)).shape == (2 * size, 0)


def case_every_type_arrives_bit_for_bit(rank: int, size: int) -> None:
    for dtype in DTYPES:
        rows = torch.tensor([0, 1, rank]).to(dtype)
        assert same_bits(
            collective.allgather(rows), torch.cat([torch.tensor([0, 1, r]).to(dtype) for r in range(size)])
        )
        assert same_bits(collective.broadcast(rows, size - 1), torch.tensor([0, 1, size - 1]).to(dtype))
    extremes = torch.tensor([-(2**63), 2**63 - 1])
    assert same_bits(collective.allgather(extremes), extremes.repeat(size))
    odd = torch.tensor([0x7FC00001, -0x80000000, 0x7F800000], dtype=torch.int32).view(torch.float32)
    assert same_bits(collective.allgather(odd), odd.repeat(size))


def case_views_and_parameters_are_read_as_they_look(rank: int, size: int) -> None:
    view = torch.arange(6).reshape(2, 3).t()
    assert same_bits(collective.allgather(view), torch.cat([view] * size))
    assert same_bits(collective.broadcast(view), view.contiguous())
    parameter = torch.nn.Parameter(torch.full((2,), float(rank)))
    gathered = collective.allgather(parameter)
    assert not gathered.requires_grad
    assert gathered.tolist() == [float(r) for r in range(size) for _ in range(2)]


def case_what_is_returned_is_new(rank: int, size: int) -> None:
    mine = torch.tensor([float(rank)])
    collective.allgather(mine).fill_(9)
    collective.broadcast(mine).fill_(9)
    assert mine.item() == rank


def case_sums_and_means_of_all_ranks(rank: int, size: int) -> None:
    total = size * (size + 1) // 2
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64):
        assert same_bits(
            collective.allreduce(torch.full((2, 3), rank + 1, dtype=dtype)), torch.full((2, 3), total).to(dtype)
        )
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        mine = torch.full((3, 2), rank + 1.0, dtype=dtype).t()
        assert same_bits(collective.allreduce(mine), torch.full((2, 3), float(total), dtype=dtype))
        assert same_bits(collective.allreduce(mine, average=True), torch.full((2, 3), total / size, dtype=dtype))
        assert mine.tolist() == [[rank + 1.0] * 3] * 2
    assert collective.allreduce(torch.empty(0, 3)).shape == (0, 3)
    assert collective.allreduce(torch.tensor(2.0)).item() == 2.0 * size
    assert not collective.allreduce(torch.ones(1, requires_grad=True)).requires_grad


def case_what_has_no_sum_or_no_mean_is_refused(rank: int, size: int) -> None:
    for dtype in (torch.bool, torch.int16, torch.complex64):
        with pytest.raises(TypeError, match=r"tensor must be of uint8, .* float64, got .*; convert it first"):
            collective.allreduce(torch.ones(1, dtype=dtype))
    with pytest.raises(TypeError, match="only floating point has a mean, got int64"):
        collective.allreduce(torch.ones(1, dtype=torch.int64), average=True)


def case_rows_reach_the_rank_they_are_for(rank: int, size: int) -> None:
    def rows_of(sender: int, receiver: int) -> torch.Tensor:  # sender r has r + 2 s rows for s, and the first none
        return torch.full((0 if receiver == 0 else sender + 2 * receiver, 2), 10 * sender + receiver)

    mine = [rows_of(rank, other) for other in range(size)]
    for sizes in ([len(rows) for rows in mine], torch.tensor([len(rows) for rows in mine])):
        rows, received = collective.alltoall(torch.cat(mine), sizes)
        assert received == [len(rows_of(other, rank)) for other in range(size)]
        assert same_bits(rows, torch.cat([rows_of(other, rank) for other in range(size)]))
    for dtype in DTYPES:
        rows, received = collective.alltoall(torch.tensor([0, 1, rank] * size).to(dtype), [3] * size)
        assert same_bits(rows, torch.tensor([[0, 1, other] for other in range(size)]).reshape(-1).to(dtype))
    rows, received = collective.alltoall(torch.empty(0, 3), [0] * size)
    assert (rows.shape, received) == ((0, 3), [0] * size)
    rows, received = collective.alltoall(torch.empty(size, 0), [1] * size)
    assert (rows.shape, received) == ((size, 0), [1] * size)


def case_an_exchange_returns_what_is_new(rank: int, size: int) -> None:
    mine = torch.full((size,), rank)
    rows, _ = collective.alltoall(mine, [1] * size)
    rows.fill_(9)
    assert mine.tolist() == [rank] * size
    collective.allreduce(mine).fill_(9)
    assert mine.tolist() == [rank] * size


def case_sizes_that_do_not_fit_the_rows_are_refused(rank: int, size: int) -> None:
    wrong = [[2] * (size + 1), [1] * size, [-1, *[3] * (size - 1)], []]
    for sizes in wrong:
        with pytest.raises(ValueError, match=rf"alltoall: sizes must be {size} numbers >= 0, one for each rank"):
            collective.alltoall(torch.ones(2 * size, 2), sizes)
    with pytest.raises(ValueError, match=r"for a tensor of shape \[\]"):
        collective.alltoall(torch.tensor(1), [1] * size)


def case_nobody_passes_a_barrier_before_all_are_there(rank: int, size: int) -> None:
    path = Path(tempfile.gettempdir()) / f"barrier-of-{os.getppid()}-{size}"  # ranks have the launcher as parent
    if rank == size - 1:
        path.write_text("here")
    collective.barrier()
    assert path.read_text() == "here"
    collective.barrier()
    if rank == 0:
        path.unlink()


def case_a_tensor_without_rows_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"allgather: tensor must have rows, got one of shape \[\]"):
        collective.allgather(torch.tensor(1))


def case_every_root_is_heard(rank: int, size: int) -> None:
    for root in range(size):
        assert collective.broadcast(torch.full((2, 2), rank), root).tolist() == [[root, root], [root, root]]
        assert collective.broadcast(torch.tensor(rank), root).item() == root
        assert collective.broadcast(torch.empty(0, 2), root).shape == (0, 2)


def case_a_root_that_is_not_there_is_refused(rank: int, size: int) -> None:
    for root in (-1, size):
        with pytest.raises(ValueError, match=rf"broadcast: root_rank must be in \[0, {size}\), got {root}"):
            collective.broadcast(torch.ones(1), root)
        with pytest.raises(ValueError, match="broadcast_parameters: root_rank"):
            collective.broadcast_parameters({"w": torch.ones(1)}, root)


def case_ranks_that_disagree_all_hear_it_and_go_on(rank: int, size: int) -> None:
    if size == 1:
        return
    last = rank == size - 1
    disagreements: list[tuple[Callable[[], object], str]] = [
        (lambda: collective.allgather(torch.ones(1, 3 if last else 2)), r"float32 \[2\] on cpu.*float32 \[3\] on cpu"),
        (lambda: collective.allgather(torch.ones(1).to(torch.int8 if last else torch.int64)), "int64.*int8"),
        (lambda: collective.broadcast(torch.ones(2 if last else 3)), r"float32 \[3\].*float32 \[2\]"),
        (lambda: collective.broadcast(torch.ones(1), int(last)), "broadcast from 0.*broadcast from 1"),
        (
            lambda: collective.allgather(torch.ones(1)) if last else collective.broadcast(torch.ones(1)),
            "rank 0 makes 'broadcast.*rank 1 makes 'allgather",
        ),
        (lambda: collective.allreduce(torch.ones(2 if last else 3)), r"allreduce of float32 \[3\].*float32 \[2\]"),
        (
            lambda: collective.alltoall(torch.ones(size, 3 if last else 2), [1] * size),
            r"alltoall of rows.*\[2\].*\[3\]",
        ),
        (lambda: collective.allreduce(torch.ones(1)) if last else collective.barrier(), "'barrier'.*'allreduce"),
        (lambda: collective.broadcast_parameters({"b" if last else "a": torch.ones(1)}), "1 tensors with digest"),
    ]
    for call, message in disagreements:
        with pytest.raises(InvalidArgumentError, match=message):
            call()
        assert collective.allgather(torch.tensor([rank])).tolist() == list(range(size))


def case_parameters_become_those_of_the_root_in_place(rank: int, size: int) -> None:
    def model_of(seed: int) -> torch.nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))

    root = size - 1
    model = model_of(rank)
    weights = dict(model.named_parameters())
    collective.broadcast_parameters(model.state_dict(), root)
    want = model_of(root).state_dict()
    assert all(same_bits(value, want[name]) for name, value in model.state_dict().items())
    assert dict(model.named_parameters()) == weights
    model(torch.ones(4, 3)).square().sum().backward()  # the graph does not mind
    transposed = torch.full((3, 2), float(rank)).t()
    collective.broadcast_parameters({"t": transposed, "empty": torch.empty(0)}, root)
    assert transposed.tolist() == torch.full((2, 3), float(root)).tolist()
    collective.broadcast_parameters({}, root)


def case_the_hook_broadcasts_when_a_session_is_made_and_rebuilt(rank: int, size: int) -> None:
    weights = {"w": torch.full((2,), float(rank))}
    hook = BroadcastGlobalVariablesHook(lambda: weights, root_rank=size - 1)
    hook.begin()
    assert weights["w"].tolist() == [rank, rank]
    for _ in range(2):
        weights["w"] = torch.full((2,), float(rank))
        hook.after_create_session(StepLoop())
        assert weights["w"].tolist() == [size - 1, size - 1]


CASES: dict[str, Callable[[int, int], None]] = {
    name: value for name, value in sorted(globals().items()) if name.startswith("case_")
}


def main(folder: Path) -> None:
    """Run every case and write its traceback, or nothing, under this rank's number."""
    collective.init(timeout_seconds=25)
    rank, size = collective.rank(), collective.size()
    failures = {}
    for name, case in CASES.items():
        try:
            case(rank, size)
        except BaseException:  # noqa: BLE001 - also what pytest raises when a claim does not hold
            failures[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps({"size": size, "ran": list(CASES), "failures": failures}))
    collective.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
