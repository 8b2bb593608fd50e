"""A recovery record holds what was written, or is skipped: cut off, damaged, of another version, made up."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from monolith.deltalog import IncrementKind
from monolith.errors import AbortedError, DataLossError, UnavailableError
from monolith.ps.recovery.entries import FORMAT_VERSION, DenseEntry, RecordedState, RowsEntry, Section
from monolith.ps.recovery.record_log import RecordBatch, RecordLog
from monolith.tables.batch import BatchStamp


def entry(**changes: object) -> RowsEntry:
    stamps = {3: BatchStamp(worker=3, seq=7, position=b"\x00\xff", event_time_ms=12)}
    plain = RowsEntry(
        agreement="{}",
        lineage=1 << 62,
        generation=2,
        life=(1 << 63) - 1,
        end=9,
        stamps=stamps,
        newest_times=(5, 0),
        snapshots={(1 << 64) - 1: 4},
        section=Section(begin=3, records=(7, 9), rows=2),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def state(**changes: object) -> RecordedState:
    plain = RecordedState(
        initialized=frozenset({"rows/a", "dense"}),
        stores={"a": entry(), "b": entry(section=None)},
        dense=DenseEntry(layout={"x": [1]}, origin=5, stamps={}, index_bytes=64, bytes=50, records=(3, 4)),
        parts={"job": b"\x00state\xff"},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


_OPENED: list[RecordLog] = []


@pytest.fixture(autouse=True)
def _close_logs() -> Iterator[None]:
    """Closes what a test has opened."""
    yield
    while _OPENED:
        _OPENED.pop().close()


def opened(folder: Path, index: int = 1) -> RecordLog:
    _OPENED.append(RecordLog(str(folder), index, 4))
    _OPENED[-1].claim()
    return _OPENED[-1]


def append(log: RecordLog, payloads: Sequence[bytes], name: str = "a") -> list[int]:
    """Appends a state with these rows; their numbers."""
    records: list[int] = []

    def fill(batch: RecordBatch) -> RecordedState:
        records.extend(batch.add(IncrementKind.ROWS, payload) for payload in payloads)
        return RecordedState(stores={name: entry(section=Section(begin=0, records=tuple(records), rows=1))})

    assert log.append(fill) is not None
    return records


def read(folder: Path) -> RecordLog:
    log = opened(folder)
    log.read()
    log.close()
    return log


def segments_of(folder: Path) -> list[Path]:
    """The files of the record in order."""
    return sorted(folder.glob("servers/parts/ps-1-of-4.0256-0512/*.log"))


def test_a_state_is_what_was_written() -> None:
    assert RecordedState.from_bytes(state().to_bytes()) == state()


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, b'{"version": 1e400}', json.dumps({"stores": 3}).encode()],
)
def test_a_forged_state_is_rejected(text: bytes) -> None:
    with pytest.raises(DataLossError):
        RecordedState.from_bytes(text)


def test_fields_of_the_wrong_kind_are_refused_whatever_they_are() -> None:
    rng = random.Random(301)  # noqa: S311 - a fixed seed
    good = json.loads(state().to_bytes())
    values = [None, -1, 1.5, "x", [], {}, True, [1], {"a": 1}]
    refused = 0
    for _ in range(400):
        document = json.loads(json.dumps(good))
        node = document
        while True:
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
                node = node[key]
                continue
            node[key] = rng.choice(values)
            break
        try:
            RecordedState.from_bytes(json.dumps(document).encode())
        except DataLossError:
            refused += 1
    assert refused > 200  # others are harmless: a text for a text


def test_a_state_of_another_version_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = opened(tmp_path)
    append(log, [b"one"])
    newer = json.loads(state().to_bytes()) | {"version": FORMAT_VERSION + 1}
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(RecordedState, "to_bytes", lambda _: json.dumps(newer).encode())
        append(log, [b"two"])
    log.close()
    with caplog.at_level(logging.WARNING):
        assert list(read(tmp_path).states) == [2]
    assert "state 4: version 3, this build reads version 2" in caplog.text


def test_the_page_names_the_version() -> None:
    page = Path(__file__).parents[2] / "docs" / "formats" / "recovery.md"
    assert f"version {FORMAT_VERSION}" in page.read_text(encoding="utf-8").splitlines()[0]


def test_a_record_returns_its_rows_and_states(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert append(log, [b"one", b"two"]) == [1, 2]
    assert append(log, [b"three"]) == [4]
    assert append(opened(tmp_path, 0), [b"of another server"]) == [1]
    log.close()
    again = read(tmp_path)
    assert list(again.states) == [3, 5]
    assert again.last == again.states[5]
    assert list(again.payloads([1, 2, 4])) == [b"one", b"two", b"three"]
    assert again.is_intact([1, 2, 4])
    assert not again.is_intact([3])
    assert list(again.payloads([])) == []
    with pytest.raises(DataLossError, match=r"records \[99\] are missing"):
        list(again.payloads([99]))


def test_a_record_that_is_cut_off_anywhere_has_the_states_before(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, [b"one"])
    append(log, [b"two"])
    log.close()
    last = segments_of(tmp_path)[-1]
    data = last.read_bytes()
    for size in [*range(0, len(data), 31), len(data) - 1]:
        folder = tmp_path / str(size)
        shutil.copytree(tmp_path / "servers", folder / "servers")
        (folder / last.relative_to(tmp_path)).write_bytes(data[:size])
        again = read(folder)
        assert list(again.states) == [2]
        assert list(again.payloads([1])) == [b"one"]


def test_damage_is_reported_and_states_with_it_are_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = opened(tmp_path)
    for payload in (b"one", b"second", b"three"):
        append(log, [payload])
    log.close()
    segment = segments_of(tmp_path)[2]
    segment.write_bytes(segment.read_bytes().replace(b"second", b"sEcond"))
    with caplog.at_level(logging.WARNING):
        again = read(tmp_path)
    assert "the states that need it are skipped" in caplog.text
    assert list(again.states) == [2, 4, 6]
    assert [again.is_intact([number]) for number in (1, 3, 5)] == [True, False, True]
    assert list(again.payloads([5])) == [b"three"]


def test_records_without_a_state_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolith.ps.recovery.record_log.CHUNK_BYTES", 4)
    log = opened(tmp_path)

    def interrupted(batch: RecordBatch) -> RecordedState:
        batch.add(IncrementKind.ROWS, b"many rows")
        raise AbortedError("another writer needs it")

    with pytest.raises(AbortedError):
        log.append(interrupted)
    assert append(log, [b"rows"]) == [2]
    log.close()
    assert list(read(tmp_path).states) == [3]


def test_a_small_increment_needs_two_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    synced: list[int] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synced.append)
    append(log, [b"rows", b"more rows"])
    assert len(synced) == 2  # the file, and the folder that has its name


def test_a_disk_that_cannot_be_read_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    append(log, [b"one"])
    log.close()
    again = opened(tmp_path)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(UnavailableError, match="Input/output error; check the disk and start again, or remove '"):
        again.read()


def test_a_process_that_was_replaced_writes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = opened(tmp_path)
    append(before, [b"one"])
    after = opened(tmp_path)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(AbortedError):
            append(before, [b"of the one before"])
        assert not before.is_still_ours()
        assert not before.is_still_ours()
    assert caplog.text.count("another process has taken the place of this one") == 1
    with pytest.raises(UnavailableError, match="another process claims it at the same time"):
        before.read()
    append(after, [b"two"])
    after.close()
    assert list(read(tmp_path).states) == [2, 5]


def test_a_record_that_is_given_back_continues(tmp_path: Path) -> None:
    before = opened(tmp_path)
    append(before, [b"one"])
    opened(tmp_path).close(give_back=True)
    assert before.is_still_ours()
    append(before, [b"two"])
    before.close()
    assert list(read(tmp_path).states) == [2, 4]


def test_a_record_that_was_removed_starts_from_number_0(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, [b"one"])
    log.remove_all()
    assert (log.states, log.last) == ({}, RecordedState())
    assert append(log, [b"two"]) == [1]
    log.close()
    assert list(read(tmp_path).payloads([1])) == [b"two"]
