"""What holds of calls in lock-step with any number of ranks: `test_lock_step.py` runs each ``case_...``."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from collective import ranks
from monolith import collective
from monolith.collective import Agreed, Call, LockStep, RaisedByAllError
from monolith.errors import InvalidArgumentError


def in_step() -> LockStep:
    return LockStep(collective.training_line())


def case_the_header_carries_sizes_and_flags(rank: int, size: int) -> None:
    step = in_step()
    for num_sizes in (0, 1, 12, 13, 40, 2):  # the room of a header grows and stays
        sizes = torch.arange(size).unsqueeze(1) * 100 + torch.arange(num_sizes) + 1000 * rank
        agreed = step.run(Call("read", "rows"), sizes=sizes, flags=1 << rank, work=lambda agreed: agreed)
        assert agreed.sizes.tolist() == [[100 * rank + n + 1000 * r for n in range(num_sizes)] for r in range(size)]
        assert agreed.flags == (1 << size) - 1
        assert agreed.flags_of_ranks == [1 << r for r in range(size)]
        assert agreed.active == [True] * size
        assert agreed.call == Call("read", "rows")
    assert step.run(Call("read"), flags=int(rank == size - 1) << 61, work=lambda agreed: agreed.flags) == 1 << 61


def case_calls_are_made_in_the_order_of_submission(rank: int, size: int) -> None:
    step = in_step()
    made: list[int] = []

    def counting(number: int) -> Callable[[Agreed], None]:
        return lambda _: made.append(number)

    pending = [step.call(Call("count", str(n)), work=counting(n)) for n in range(20)]
    gathered = collective.allgather(torch.tensor([rank]))  # behind them, though it is made from another thread
    assert made == list(range(20))
    assert gathered.tolist() == list(range(size))
    assert all(each.done() for each in pending)
    assert [each.result() for each in pending] == [None] * 20


def case_work_uses_the_wire(rank: int, size: int) -> None:
    wire = collective.training_line().wire

    def send(agreed: Agreed) -> list[int]:
        received = torch.empty(int(agreed.sizes.sum()), dtype=torch.int64)
        sent = torch.full((2 * size,), rank)
        wire.exchange(received, sent, agreed.sizes[:, 0].tolist(), [2] * size)
        return list(received.tolist())

    step = in_step()
    assert step.call(Call("ids"), sizes=torch.full((size, 1), 2), work=send).result() == [
        r for r in range(size) for _ in range(2)
    ]


def case_a_call_inside_a_call_is_part_of_it(rank: int, size: int) -> None:
    def inner(_: Agreed) -> list[int]:
        return list(collective.allgather(torch.tensor([rank])).tolist())

    assert in_step().call(Call("outer"), work=inner).result() == list(range(size))


def case_ranks_that_disagree_all_hear_it_and_go_on(rank: int, size: int) -> None:
    if size == 1:
        return
    step = in_step()
    last = rank == size - 1
    disagreements = [
        (Call("read"), Call("apply"), "rank 0 makes 'read' and rank . makes 'apply'"),
        (Call("read", "a"), Call("read", "b"), "'read a'.*'read b'"),
        (Call("read", "a", b"1"), Call("read", "a", b"2"), "arguments b'1'.*arguments b'2'"),
        (Call("read", "a", b"1" * 999), Call("read", "a", b"2" * 999), "999 bytes of arguments, digest"),
    ]
    for mine, others, message in disagreements:
        with pytest.raises(InvalidArgumentError, match=message):
            step.call(others if last else mine, work=lambda _: pytest.fail("it must not run")).result()
    with pytest.raises(InvalidArgumentError, match=r"'read with 1 sizes'.*'read with 2 sizes'"):
        step.run(Call("read"), sizes=torch.zeros(size, 1 + last, dtype=torch.int64), work=lambda _: None)
    assert collective.allgather(torch.tensor([rank])).tolist() == list(range(size))


def case_an_error_of_all_ranks_leaves_the_line_open(rank: int, size: int) -> None:
    def refuse(_: Agreed) -> None:
        raise RaisedByAllError(InvalidArgumentError("not finite"))

    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="not finite"):
            in_step().call(Call("apply"), work=refuse).result()
    assert collective.allgather(torch.tensor([rank])).tolist() == list(range(size))


def case_idle_ranks_follow_the_others(rank: int, size: int) -> None:
    step = in_step()
    seen: list[tuple[str, bytes, list[bool], int]] = []

    def handler(agreed: Agreed, arguments: bytes) -> None:
        seen.append((agreed.call.subject, arguments, agreed.active, int(agreed.sizes.sum())))
        collective.training_line().wire.gather(torch.tensor([rank]))

    for active in range(size):  # each rank in turn is the only one that is not idle
        if rank == active:
            call = Call("read", "rows", bytes([0, 1, active]))
            pending = step.call(
                call,
                sizes=torch.full((size, 40), 1),
                flags=2,
                work=lambda agreed: (agreed.num_active, collective.training_line().wire.gather(torch.tensor([rank]))),
            )
            assert pending.result() == (1, [torch.tensor([r]) for r in range(size)])
        else:
            assert step.follow({"read": handler}, flags=1).result() == "read"
    others = [r for r in range(size) if r != rank]
    assert seen == [("rows", bytes([0, 1, r]), [r == other for other in range(size)], 40) for r in others]
    assert step.follow({}).result() is None  # all are idle


def case_threads_may_call_at_the_same_time(rank: int, size: int) -> None:
    gathered: list[list[int]] = []

    def gather_often() -> None:
        gathered.extend(list(collective.allgather(torch.tensor([rank])).tolist()) for _ in range(25))

    threads = [threading.Thread(target=gather_often) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gathered == [list(range(size))] * 50


def case_threads_that_call_different_things_get_them_or_the_same_error(rank: int, size: int) -> None:
    wrong: list[object] = []

    def gather_often() -> None:
        for _ in range(20):
            with contextlib.suppress(InvalidArgumentError):  # the other rank was at the other thread's call
                wrong.extend(set(collective.allgather(torch.tensor([rank])).tolist()) ^ set(range(size)))

    def broadcast_often() -> None:
        for _ in range(20):
            with contextlib.suppress(InvalidArgumentError):
                wrong.extend({collective.broadcast(torch.tensor(100 + rank)).item()} ^ {100})

    threads = [threading.Thread(target=target) for target in (gather_often, broadcast_often)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert collective.allgather(torch.tensor([rank])).tolist() == list(range(size))


def case_the_saving_line_goes_on_beside_training(rank: int, size: int) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Agreed) -> str:
        begun.set()
        assert go_on.wait(60)
        return "saved"

    saving = LockStep(collective.saving_line())
    pending = saving.call(Call("write"), work=slow) if size > 1 else None
    if pending is not None:
        assert begun.wait(60)
    assert collective.allgather(torch.tensor([rank])).tolist() == list(range(size))
    go_on.set()
    assert pending is None or pending.result() == "saved"


def case_wrong_sizes_and_flags_are_refused_before_anybody_hears_of_them(rank: int, size: int) -> None:
    step = in_step()
    for sizes in (torch.zeros(size + 1, 1, dtype=torch.int64), torch.zeros(size, 1), torch.zeros(size).long()):
        with pytest.raises(InvalidArgumentError, match=rf"sizes must be int64 \[{size} ranks, k\]"):
            step.call(Call("read"), sizes=sizes, work=lambda _: None)
    for flags in (-1, 1 << 62):
        with pytest.raises(InvalidArgumentError, match="flags must be in"):
            step.follow({}, flags=flags)


CASES: dict[str, Callable[[int, int], None]] = {
    name: value for name, value in sorted(globals().items()) if name.startswith("case_")
}


def main(folder: Path, rank: int, size: int) -> None:
    """Run every case and write its traceback, or nothing, under this rank's number."""
    ranks.meet(folder, rank, size)
    collective.init(timeout_seconds=25)
    failures = {}
    for name, case in CASES.items():
        try:
            case(rank, size)
        except BaseException:  # noqa: BLE001 - also what pytest raises when a claim does not hold
            failures[name] = traceback.format_exc()
    collective.shutdown()
    alive = [thread.name for thread in threading.enumerate() if thread.name.startswith("monolith")]
    ranks.write_result(folder, rank, {"ran": list(CASES), "failures": failures, "alive": alive})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
