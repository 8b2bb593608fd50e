"""Whatever of an online tree is killed, every event is trained once, and followers have the trainer's rows.

With servers instead of followers no answer breaks a promise, and a client that asks once more is answered.
``scripts/crash-test --online --kills 100``, and with ``--serve``, does more of the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from programs import Programs
from system.crash.online_events import OnlineTraffic
from system.crash.online_follower import slot_keys
from system.crash.online_trial import (
    Passing,
    miscounts,
    row_differences,
    versions_that_go_back,
    written_lines,
)
from system.crash.stream_task import StreamCountingTask

KILLS = {"files": 6, "kafka": 4}


@pytest.mark.parametrize(
    ("transport", "readers"),
    [
        ("files", "follower"),
        pytest.param("files", "server", marks=pytest.mark.slow),
        pytest.param("kafka", "follower", marks=pytest.mark.slow),
        pytest.param("kafka", "server", marks=pytest.mark.slow),
    ],
)
def test_a_tree_loses_doubles_and_keeps_nothing_whichever_process_is_killed(
    project_root: Path, quick_folder: Path, programs: Programs, transport: str, readers: str
) -> None:
    arguments = ["--online", "--kills", str(KILLS[transport]), "--seed", "3", "--json"]
    arguments += ["--directory", str(quick_folder), *(["--kafka"] if transport == "kafka" else [])]
    arguments += ["--serve"] if readers == "server" else []
    done = programs.run(Path("scripts/crash-test"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stdout + done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    assert trial["problems"] == []
    assert trial["transport"] == transport
    assert len(trial["kills"]) == KILLS[transport]
    assert len({kill["role"] for kill in trial["kills"]}) == KILLS[transport]
    assert any(kill["role"].startswith(readers) for kill in trial["kills"])
    assert all(kill["recovery_seconds"] > 0 and kill["following_seconds"] > 0 for kill in trial["kills"])
    assert trial["evicted"] > 0
    if readers == "server":
        assert 0 < trial["asked"]["retries"] < trial["asked"]["requests"] < trial["asked"]["answers"]


FLIP = 12


@pytest.mark.parametrize("readers", ["follower", pytest.param("server", marks=pytest.mark.slow)])
def test_a_change_of_taste_shows_in_both_readers_and_staleness_counts_from_the_action(
    project_root: Path, quick_folder: Path, programs: Programs, readers: str
) -> None:
    program = project_root / "tests" / "system" / "taste_program.py"
    done = programs.run(program, str(quick_folder), str(FLIP), readers, folder=project_root)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    for seen in told["seen"].values():
        before, after = (preference(seen["tastes"][str(chunk)]) for chunk in (FLIP, 24))
        assert before > 1.0
        assert after < -1.0
        if readers == "follower":
            p50, p99, _ = seen["staleness"]
            assert 0.0 < p50 <= p99
    for delays in told["delays"].values():
        assert delays[0] >= 0.0  # nobody knows of an action, or of the close of a window, before
        assert len(delays) > 200


def preference(logits: list[float]) -> float:
    """How much more the first half of the items is liked than the second."""
    half = len(logits) // 2
    return (sum(logits[:half]) - sum(logits[half:])) / half


# What is judged


TRAFFIC = OnlineTraffic(seed=1, start_ms=1_700_000_000_000, step_ms=3_600_000.0, num_chunks=2, chunk_events=40)


@pytest.fixture(scope="module")
def counted() -> StreamCountingTask:
    """A task as it is when every event was trained once."""
    task = StreamCountingTask()
    task.make_model()
    train(task, range(TRAFFIC.num_events))
    return task


def train(task: StreamCountingTask, events: Iterable[int], times: float = 1.0) -> None:
    """Adds what some events add, without a stream."""
    clicked = [TRAFFIC.is_clicked(event) for event in events]
    items = torch.tensor([TRAFFIC.item(event) for event in events])
    features = {name: torch.tensor(list(events)) for name in ("event", "passing")}
    features |= dict.fromkeys(("item", "whole", "liked", "taste"), items)
    looked_up = task.emb(features)
    counts = sum(looked_up[name].sum() for name in ("event", "item", "passing", "whole"))
    loss = -counts - (looked_up["liked"][:, 0] * torch.tensor(clicked, dtype=torch.float32)).sum()
    (times * loss).backward()
    task.emb.step()
    with torch.no_grad():
        task.total.weight += times * len(clicked)


def test_an_undisturbed_count_is_right(counted: StreamCountingTask) -> None:
    assert list(miscounts(counted, TRAFFIC)) == []


@pytest.mark.parametrize("times", [1.0, -1.0], ids=["trained-twice", "lost"])
def test_an_event_too_many_or_too_few_shows(counted: StreamCountingTask, times: float) -> None:
    event = next(event for event in range(TRAFFIC.num_events) if TRAFFIC.is_clicked(event))
    train(counted, [event], times)
    try:
        found = "\n".join(miscounts(counted, TRAFFIC))
    finally:
        train(counted, [event], -times)
    for name in (f"event {event}: 1 in the data", "item ", "liked ", "the dense weight counts"):
        assert name in found


def test_rows_that_are_missing_left_over_or_other_bits_show() -> None:
    trained = {"t 1 5": "00", "t 2 5": "01", "t 3 5": "02"}
    assert list(row_differences(trained, dict(trained))) == []
    found = list(row_differences(trained, {"t 1 5": "00", "t 2 6": "01", "t 3 5": "03", "t 4 5": "00"}))
    assert found == [
        "row t 2 5 of the trainer is missing",
        "row t 2 6 exists, but not at the trainer",
        "row t 4 5 exists, but not at the trainer",
        "row t 3 5 is 03, and the trainer's 02",
    ]


def test_a_version_that_goes_back_shows(tmp_path: Path) -> None:
    path = tmp_path / "follower-0-1.versions"
    path.write_text('{"version": {"a": 1}}\n{"version": {"a": 1, "b": 0}}\n{"version": {"a": 0')  # killed in a line
    assert list(versions_that_go_back(written_lines(path))) == []
    path.write_text('{"version": {"a": 2, "b": 5}}\n{"version": {"a": 1, "b": 5}}\n{"version": {"a": 2}}\n')
    assert list(versions_that_go_back(written_lines(path))) == [
        "line 1: part 'a' went back from 2 to 1",
        "line 2: part 'b' went back from 5 to None",
    ]


def test_expired_rows_still_present_and_unexpired_rows_missing_are_reported() -> None:
    table, keys = slot_keys("passing", range(TRAFFIC.num_events))
    newest = max(TRAFFIC.time_ms(event) for event in range(TRAFFIC.num_events)) // 1000
    times = {event: TRAFFIC.time_ms(event) // 1000 for event in range(TRAFFIC.num_events)}
    rows = {f"{table} {int(keys[event])} {seen}": "00" for event, seen in times.items()}
    kept = {row: value for row, value in rows.items() if int(row.split()[2]) >= newest - 86_400}
    good = Passing.of(kept, TRAFFIC)
    assert list(good.problems(TRAFFIC)) == []
    assert 0 < len(good.gone) < TRAFFIC.num_events
    assert "expired rows still exist" in "".join(Passing.of(rows, TRAFFIC).problems(TRAFFIC))
    assert "rows that have not expired are missing" in "".join(Passing.of({}, TRAFFIC).problems(TRAFFIC))


def test_events_are_a_function_of_the_seed_and_come_in_the_order_of_time() -> None:
    again = OnlineTraffic(**{each.name: getattr(TRAFFIC, each.name) for each in dataclasses.fields(TRAFFIC)})
    assert again.chunks == TRAFFIC.chunks
    sent = [each for chunk in TRAFFIC.chunks for each in chunk]
    for kind in ("impressions", "actions"):
        times = [each.time_ms for each in sent if each.kind == kind]
        assert times == sorted(times)
    assert len(sent) == TRAFFIC.num_events + sum(TRAFFIC.clicks().values())
