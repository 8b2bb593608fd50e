"""A cut of servers holds exactly the batches that its clock says, whoever pushes meanwhile, and whoever died."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from monolith.checkpoint import Saver
from monolith.errors import FailedPreconditionError
from monolith.ps import PsCluster, PsStore
from monolith.ps._wire_values import stats_in
from monolith.ps.client import connections as _push_hold
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables.batch import BatchStamp
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.snapshot.location import open_source
from ps.counting import Counter, agreed_counts, pushing, second_worker
from ps.served import served

OURS, BOTH, THEIRS = range(100), range(100, 200), range(200, 300)


def saved_counts(folder: Path, step: int) -> dict[int, int]:
    source = open_source(folder / f"model.ckpt-{step}.assets" / "emb")
    source.close()
    return agreed_counts(source.manifest.applied)


def assert_counts(counter: Counter, counts: Mapping[int, int]) -> None:
    assert set(counter.counts(OURS)) == {counts[0]}
    assert set(counter.counts(BOTH)) == {counts[0] + counts[1]}
    assert set(counter.counts(THEIRS)) == {counts[1]}


@pytest.mark.parametrize("num_ps", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_save_while_another_worker_pushes_matches_its_clock(
    tmp_path: Path, clusters: Mapping[int, PsCluster], num_ps: int
) -> None:
    with served(clusters[num_ps]):
        counter = Counter([*OURS, *BOTH])
        counter.step()
        with pushing(counter.emb.store, [*BOTH, *THEIRS]) as pusher, Saver(tmp_path, max_to_keep=100) as saver:
            for _ in range(6):
                pusher.wait_for_more()
                counter.step()
                saver.save(counter.state)
            pusher.wait_for_more()
    saved = {step: saved_counts(tmp_path, step) for step in range(2, 8)}
    assert all(counts[0] == step for step, counts in saved.items())
    assert all(saved[step][1] + 3 <= saved[step + 1][1] <= pusher.count for step in range(2, 7))
    for step, after in zip(saved, (0, 1, 2, 3, 5, 0), strict=True):
        with served(clusters[after]) if after else nullcontext():
            counter = Counter([*OURS, *BOTH])
            Saver(tmp_path).restore(counter.state, f"model.ckpt-{step}")
            assert_counts(counter, saved[step])


def test_pushes_continue_while_a_cut_is_open_and_are_not_in_it(clusters: Mapping[int, PsCluster]) -> None:
    with served(clusters[3]):
        counter = Counter([*OURS, *BOTH])
        counter.step()
        with pushing(counter.emb.store, [*BOTH, *THEIRS]) as pusher:
            pusher.wait_for_more()
            with counter.emb.cut() as cut:
                pusher.wait_for_more()
                counts = agreed_counts(cut.applied)
                blocks = list(cut.blocks(ALL_BUCKETS, state=True))
    assert counts[1] < pusher.count
    values = {float(value) for block in blocks for value in block.weights(1).flatten()}
    assert values == {-counts[0], -counts[0] - counts[1], -counts[1]}


def die_half_way(like: PsStore) -> None:
    """Another worker counts once, then pushes to two servers, and is gone before the second one took it."""
    with PsCluster(like.cluster.addresses) as blocker:
        hold = messages.HoldRequest(client=blocker.client, seconds=60.0)
        with second_worker(like, THEIRS) as counter:
            counter.step()
            blocker.ask_one(1, "Hold", hold)
            looked_up = counter.emb({"id": counter.ids}, stamp=BatchStamp(worker=1, seq=1))
            looked_up["id"].sum().backward()
            step = counter.emb.take_step()
            assert step is not None
            step.begin()
            while stats_in(blocker.ask_one(0, "Situation", messages.StoreRequest(store=like.name))).applied[1] < 1:
                time.sleep(0.001)
        with second_worker(like, THEIRS, worker=2) as witness:
            witness.counts(THEIRS)  # who is answered now came after the end of the other one was seen


def test_a_worker_that_died_between_two_servers_leaves_a_checkpoint_for_as_many(
    tmp_path: Path,
    clusters: Mapping[int, PsCluster],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_push_hold, "_LEVEL_SECONDS", 0.01)
    with PsCluster(clusters[2].addresses) as cluster, served(cluster), Saver(tmp_path) as saver:
        counter = Counter([*OURS, *BOTH])
        counter.step()
        assert isinstance(counter.emb.store, PsStore)
        die_half_way(counter.emb.store)
        for _ in range(2):
            saver.save(counter.state)
            counter.step()
    (warning,) = caplog.messages
    assert "has not reached all servers" in warning
    assert "restores only into the same number of servers" in warning
    with served(clusters[2]):
        again = Counter([*OURS, *BOTH])
        Saver(tmp_path).restore(again.state)
        assert set(again.counts(OURS)) == {2}
        assert set(again.counts(THEIRS)) == {1, 2}
        with second_worker(again.emb.store, THEIRS) as other:
            session = other.emb.join(1)
            assert session.applied is not None
            assert (session.applied.seq, session.next_seq) == (0, 2)
            other.step(BatchStamp(worker=1, seq=1))  # the server that has it does nothing
            other.step(BatchStamp(worker=1, seq=2))
            assert set(other.counts(THEIRS)) == {3}
    for place in (nullcontext(), served(clusters[3])):
        with place:
            other_number = Counter([*OURS, *BOTH])
            other_number.step()
            with pytest.raises(FailedPreconditionError, match=r"worker 1's .*restore with as many owners as saved"):
                Saver(tmp_path).restore(other_number.state)
            assert set(other_number.counts([*OURS, *BOTH])) == {1}  # nothing was replaced
