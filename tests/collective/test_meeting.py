"""The ranks of a start find each other, whatever starts before them have left where they meet."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from monolith.collective.library import KeyStore, MemoryKeyStore
from monolith.collective.torch_distributed import meet

LONG_SECONDS = 60.0

KILLED_TWICE = """
import os, signal, torch
from monolith import collective
collective.init(timeout_seconds=60)
total = int(collective.allgather(torch.ones(1)).sum())
if collective.rank() == 1 and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2:
    os.kill(os.getpid(), signal.SIGKILL)
collective.allgather(torch.ones(1))
os.write(1, f"met {total}\\n".encode())
collective.shutdown()
"""


def meet_all(store: KeyStore, size: int) -> list[str]:
    found = [""] * size

    def one(rank: int) -> None:
        found[rank] = meet(store, rank, size, timeout_seconds=LONG_SECONDS)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in reversed(range(size))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def test_every_start_has_a_unique_mark_shared_by_all_its_ranks() -> None:
    store = MemoryKeyStore()
    starts = [meet_all(store, size) for size in (3, 3, 1, 2, 3)]
    assert all(len(set(marks)) == 1 for marks in starts)
    assert len({marks[0] for marks in starts}) == len(starts)


def test_ranks_that_come_first_do_not_take_the_mark_of_a_start_that_is_over() -> None:
    store = MemoryKeyStore()
    (old, _) = meet_all(store, 2)
    found: list[str] = []
    early = threading.Thread(target=lambda: found.append(meet(store, 1, 2, timeout_seconds=LONG_SECONDS)))
    early.start()
    while not store.check([f"monolith/start/{old}/1"]):
        time.sleep(0.001)
    mark = meet(store, 0, 2, timeout_seconds=LONG_SECONDS)
    early.join()
    assert found == [mark]
    assert mark != old


def test_a_start_whose_rank_0_died_before_it_answered_blocks_no_rank() -> None:
    store = MemoryKeyStore()
    store.set("monolith/start", "gone")
    assert len(set(meet_all(store, 2))) == 1


def test_a_rank_that_waits_in_vain_times_out() -> None:
    store = MemoryKeyStore()
    with pytest.raises(TimeoutError, match=r"rank 0 did not answer within 0\.05 s"):
        meet(store, 1, 2, timeout_seconds=0.05)
    with pytest.raises(TimeoutError, match=r"monolith/start/.*/1 was not set within"):
        meet(store, 0, 2, timeout_seconds=0.05)


@pytest.mark.slow
def test_ranks_that_torchrun_restarts_meet_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torchrun leaves a folder there
    script = tmp_path / "killed_twice.py"
    script.write_text(KILLED_TWICE, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "2", "--monitor-interval", "0.1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("met 2") == 2
