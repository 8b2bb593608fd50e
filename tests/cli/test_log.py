"""`monolith log` tells what a log holds, names what is wrong with it, and compacts it without training code."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from monolith.cli import main
from monolith.deltalog import DeltaLog, IncrementKind, recovery_part, rows_part
from monolith.deltalog.publish import Trained
from monolith.files import LocalStorage
from monolith.online import DeltaPublisher, Follower
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup, compressors, row_optimizers

PART = rows_part()


def new_store(*, serving: bool = False) -> LocalStore:
    """With a segment whose state is smaller than usual, and a compressor whose range no schema tells."""
    segments = [
        Segment(4, optimizer=row_optimizers.Adagrad(hessian_compression_times=2), compressor=compressors.FixedR8(0.5)),
        Segment(1, optimizer=row_optimizers.Ftrl()),
    ]
    return LocalStore({"item": TableConfig(segments, serving=serving)})


def assign(store: LocalStore, rows: dict[int, float]) -> None:
    TableGroup.of_store(store)["item"].assign(list(rows), [[value] * 5 for value in rows.values()])


def values(store: LocalStore, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = TableGroup.of_store(store)["item"].lookup(ids)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Ten increments of rows, in segments of a few, and the dense weights."""
    log = DeltaLog(tmp_path / "log", segment_bytes=1500)
    store = new_store()
    publisher = DeltaPublisher(store, log, dense=lambda: {"bias": torch.tensor([3.0])})
    for number in range(10):
        assign(store, {number: number / 100, 50 + number: 0.25})
        publisher.tally.add(Trained(examples=2, oldest_event_ms=1_700_000_000_000, step=number))
        publisher.publish()
    publisher.close()
    return tmp_path / "log"


def call(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main(["log", *map(str, arguments)]) == status
    return capsys.readouterr().out


def segments(place: Path) -> list[Path]:
    return sorted((place / "parts" / PART).iterdir())


def test_list_and_show(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(capsys, "list", place).splitlines()
    assert [line.split() for line in lines[1:]] == [["dense", "0", "1", "1"], [PART, "0", "10", "1"]]
    listed = json.loads(call(capsys, "list", place, "--json"))
    assert [(each["part"], each["increments"]) for each in listed["parts"]] == [("dense", 2), (PART, 11)]
    text = call(capsys, "show", place, "--part", PART, "--last", 2).splitlines()
    assert [line.split()[:4] for line in text[1:]] == [[PART, "9", "1", "rows"], [PART, "10", "1", "rows"]]
    shown = json.loads(call(capsys, "show", place, "--json"))
    assert shown[2]["schema"].startswith("monolith-schema/1")
    assert (shown[-1]["rows"], shown[-1]["examples"], shown[-1]["step"]) == (2, 2, 9)


@pytest.mark.parametrize("action", ["list", "show", "verify", "follow", "compact"])
def test_a_missing_log_is_named(tmp_path: Path, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", action, str(tmp_path / "none")]) == 1
    assert "there is no delta log" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_wrong_arguments_are_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["show", place, "--part", "x"], f"has no part 'x', but dense, {PART}"),
        (["show", place, "--last", "-1"], "--last must be >= 0, got -1"),
        (["compact", place, "--keep_bases", "0"], "--keep_bases must be >= 1, got 0"),
        (["list", place, "--kafka", "a=b"], "is no topic; leave it out"),
        (["list", "kafka://h:1/t", "--kafka", "a"], "--kafka takes KEY=VALUE, got 'a'"),
    ):
        assert main(["log", *map(str, arguments)]) == 1
        assert text in capsys.readouterr().err


def test_verify_of_a_good_log(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with segments(place)[-1].open("ab") as file:
        file.write(b"MDLI torn")  # a writer that was killed, or is at it
    assert call(capsys, "verify", place).endswith("and 0 bases read, all as written\n")
    found = json.loads(call(capsys, "verify", place, "--json"))
    assert (found["ok"], found["records"], found["findings"]) == (True, 13, [])


def records(path: Path) -> list[bytes]:
    """Of a segment, found by their first bytes, which nothing else in these logs has."""
    return [b"MDLI" + each for each in path.read_bytes().split(b"MDLI")[1:]]


def swap(place: Path) -> None:
    found = records(segments(place)[0])
    segments(place)[0].write_bytes(b"".join([*found[:-2], found[-1], found[-2]]))


def double(place: Path) -> None:
    found = records(segments(place)[1])
    segments(place)[1].write_bytes(b"".join([found[0], *found]))


def corrupt(place: Path) -> None:
    """The payload of one record and the head of another one."""
    data = bytearray(segments(place)[0].read_bytes())
    data[len(records(segments(place)[0])[0]) + 300] ^= 1
    segments(place)[0].write_bytes(data)
    data = bytearray(segments(place)[1].read_bytes())
    data[20] ^= 1
    segments(place)[1].write_bytes(data)


def lose(place: Path) -> None:
    segments(place)[1].unlink()


@pytest.mark.parametrize(
    ("harm", "faults"),
    [(swap, ["reordered"]), (double, ["doubled"]), (corrupt, ["corrupt", "corrupt"]), (lose, ["gap"])],
    ids=["swap", "double", "corrupt", "lose"],
)
def test_verify_names_every_fault(
    place: Path, harm: Callable[[Path], None], faults: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(segments(place)) > 2
    harm(place)
    found = json.loads(call(capsys, "verify", place, "--json", status=1))
    assert [each["fault"] for each in found["findings"]] == faults
    for each in found["findings"]:
        assert (each["part"], each["generation"]) == (PART, 1)
        assert each["number"] is not None
        assert f"part '{PART}', generation 1" in each["text"]
        assert f"(file '{place}/parts/{PART}/" in each["text"]
        assert ", offset " in each["text"]
    assert call(capsys, "verify", place, status=1).startswith(f"{faults[0]}: delta log")


def test_verify_names_records_of_another_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = LocalStore({"item": TableConfig([Segment(3)], serving=True)})
    with DeltaLog(place).open_writer(PART, schema=other.schema):
        pass
    found = json.loads(call(capsys, "verify", place, "--json", status=1))
    assert [each["fault"] for each in found["findings"]] == ["foreign"]
    assert "of another model: table 'item': expected 2 segments, got 1" in found["findings"][0]["text"]


def test_verify_reads_bases_and_reports_where_no_follower_can_start(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(capsys, "compact", place)
    assert json.loads(call(capsys, "verify", place, "--json"))["bases"] == 1
    (base,) = DeltaLog(place).bases()
    (file,) = [each for each in Path(base.path, "model").iterdir() if each.suffix != ".json" and each.stat().st_size]
    data = bytearray(file.read_bytes())
    data[-30] ^= 1
    file.write_bytes(data)
    assert f"base: '{base.name}'" in call(capsys, "verify", place, status=1)
    DeltaLog(place).remove_base(base.name)
    assert "no follower can start from it" in call(capsys, "verify", place, status=1)


def test_no_command_reports_completion_at_a_damaged_or_unfinished_end(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolith.cli.log._UNFINISHED_SECONDS", 0.0)
    newest = segments(place)[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    for arguments in (["follow", place, "--until_caught_up"], ["show", place], ["compact", place]):
        assert main(["log", *map(str, arguments)]) != 0
        found = capsys.readouterr().err
        assert "checksum of the record does not match" in found
        assert f"(file '{newest}', offset {len(whole) - len(records(newest)[-1])})" in found
    assert json.loads(call(capsys, "verify", place, "--json", status=1))["unfinished_bytes"] == 0
    newest.write_bytes(whole[:-9])
    torn = len(records(newest)[-1])
    assert main(["log", "follow", str(place), "--until_caught_up"]) != 0
    assert f"part '{PART}': not caught up: 1 increments ({torn} bytes) after file" in capsys.readouterr().err
    assert f"unfinished: {torn} bytes at the end, an incomplete record, are not read" in call(capsys, "verify", place)
    assert main(["log", "compact", str(place)]) == 0
    assert f"1 unfinished increments ({torn} bytes) are not in the base" in capsys.readouterr().err


def test_follow_prints_what_comes_and_ends_on_a_signal(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(capsys, "follow", place, "--json", "--until_caught_up").splitlines()
    assert len(lines) == 13
    log = DeltaLog(place)
    is_over = threading.Event()
    seen: list[str] = []

    def wait_for(text: str) -> None:
        for _ in range(1000):
            seen.append(capsys.readouterr().out)
            if text in "".join(seen) or is_over.wait(0.02):
                return

    def interrupt_when_printed() -> None:
        wait_for("generation")  # the head: it has found the end of the log
        log.open_writer("dense").close()
        wait_for("opening")
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt_when_printed)
    helper.start()
    try:
        assert main(["log", "follow", str(place), "--part", "dense", "--last", "0"]) == 0
    finally:
        is_over.set()
        helper.join()
    assert "".join(seen).splitlines()[1:] != []


def test_compact_needs_no_training_code_and_a_late_follower_begins_there(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = new_store()
    publisher = DeltaPublisher(store, DeltaLog(place, segment_bytes=1500))
    for name in ("first", "second"):
        assign(store, {1: 0.125, 70: 0.5})
        publisher.publish()
        done = json.loads(call(capsys, "compact", place, "--json"))
        assert done["numbers"] == {"dense": 1, PART: publisher.numbers[PART]}, name
    publisher.publish()
    assert done["first"][PART] > 5
    (base,) = DeltaLog(place).bases()
    assert [each.name for each in (place / "bases").iterdir() if each.is_dir()] == [base.name]  # older files went, too
    served = new_store(serving=True)
    weights: list[float] = []
    with Follower(served, str(place), on_dense=lambda found: weights.append(float(found["bias"]))) as follower:
        follower.catch_up()
    publisher.close()
    assert weights == [3.0]  # from the base: the increment that had them may be gone
    assert torch.equal(values(served, [1, 50, 70]), values(new_like(store), [1, 50, 70]))
    assert "up to increment" in call(capsys, "compact", place, "--keep_bases", 2)
    assert len(DeltaLog(place).bases()) == 2


def test_a_recovery_record_is_not_compacted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DeltaLog(tmp_path / "servers") as log, log.open_writer(recovery_part(0, 2, range(512))) as writer:
        writer.append(kind=IncrementKind.STATE, payload=b"state")
    assert main(["log", "compact", str(tmp_path / "servers")]) != 0
    text = capsys.readouterr().err
    assert "part 'ps-0-of-2.0000-0512'" in text
    assert "got the recovery record of a parameter server" in text
    assert not (tmp_path / "servers" / "bases").exists()
    call(capsys, "verify", tmp_path / "servers")


def test_what_a_killed_compaction_has_left_goes_with_the_next_one(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = json.loads(call(capsys, "compact", place, "--json"))["base"]
    left = place / "bases" / "compact-20240101T000000-abcd" / "model"
    left.mkdir(parents=True)
    (left / "0000.rows").write_bytes(b"half of it")
    other = place / "bases" / f"{PART}-0123abcd"  # of a publisher, who may be writing it now
    other.mkdir()
    lock = LocalStorage(place / "bases").lock("compact.lock")
    assert lock is not None
    assert main(["log", "compact", str(place)]) != 0
    assert "another compaction is in progress" in capsys.readouterr().err
    assert left.exists(), "it may be the one that is under way"
    lock.release()
    second = json.loads(call(capsys, "compact", place, "--keep_bases", 2, "--json"))["base"]
    assert {each.name for each in (place / "bases").iterdir() if each.is_dir()} == {first, second, other.name}


def new_like(store: LocalStore) -> LocalStore:
    """The rows of a store as serving has them."""
    served = new_store(serving=True)
    with store.cut() as cut:
        served.load(cut.blocks(range(1024), state=False), buckets=range(1024), replace=True)
    return served
