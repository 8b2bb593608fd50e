"""A file of a recovery record is what was written, or is refused: cut off, damaged, of another version, made up."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolith import _core
from monolith.errors import DataLossError
from monolith.ps.recovery.entries import DenseEntry, Place, RecordMeta, RowsEntry, Section
from monolith.ps.recovery.record_file import FOOTER, FORMAT_VERSION, HEADER, MAGIC, RecordFile, RecoveryFileWriter
from monolith.ps.recovery.record_folder import RecordFolder
from monolith.tables.batch import BatchStamp

BODY = bytes(range(256))


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
        section=Section(begin=3, places=(Place(HEADER.size, 100),), rows=2),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def meta(**changes: object) -> RecordMeta:
    plain = RecordMeta(
        index=1,
        num_ps=4,
        number=6,
        writer=99,
        initialized=frozenset({"rows/a", "dense"}),
        stores={"a": entry(), "b": entry(section=None)},
        dense=DenseEntry(
            layout={"x": [1]},
            origin=5,
            stamps={},
            index_bytes=64,
            number=6,
            place=Place(HEADER.size + 100, 50),
        ),
        parts={"job": Place(HEADER.size + 150, 10)},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def write(path: Path, told: RecordMeta | None = None) -> bytes:
    writer = RecoveryFileWriter(path)
    writer.append(BODY[:100])
    writer.append_array(np.frombuffer(BODY[100:], np.uint8))
    writer.finish(meta() if told is None else told)
    return path.read_bytes()


def test_a_file_returns_what_was_written(tmp_path: Path) -> None:
    write(tmp_path / "record")
    file = RecordFile(tmp_path / "record")
    file.require_whole()
    assert file.meta == meta()
    assert file.read(Place(HEADER.size + 98, 4)).tobytes() == BODY[98:102]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "whole")
    for size in [*range(0, len(data), 7), *range(len(data) - FOOTER.size - 2, len(data))]:
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(DataLossError):
            RecordFile(tmp_path / "cut")


def test_no_flipped_bit_gets_through(tmp_path: Path) -> None:
    data = write(tmp_path / "whole")
    text = HEADER.size + len(BODY)
    for place in [*range(0, text, 5), *range(text, len(data), 11), *range(len(data) - FOOTER.size, len(data))]:
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(DataLossError):
            RecordFile(tmp_path / "damaged").require_whole()


def framed(text: bytes, *, version: int = FORMAT_VERSION, body: bytes = b"") -> bytes:
    """A file whose checksums are right, whatever it says."""
    head = HEADER.pack(MAGIC, version, 0) + body
    begun = FOOTER.pack(len(head), len(text), _core.crc32c(head), _core.crc32c(text), 0, version, MAGIC)
    end = FOOTER.pack(
        len(head), len(text), _core.crc32c(head), _core.crc32c(text), _core.crc32c(begun[:24]), version, MAGIC
    )
    return head + text + end


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, b'{"index": 1e400}', json.dumps({"stores": 3}).encode()],
)
def test_a_forged_file_is_rejected(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "made").write_bytes(framed(text))
    with pytest.raises(DataLossError, match="not the fields of a record"):
        RecordFile(tmp_path / "made")


def test_fields_of_the_wrong_kind_are_refused_whatever_they_are(tmp_path: Path) -> None:
    rng = random.Random(301)  # noqa: S311 - a fixed seed
    good = meta().to_json()
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
        (tmp_path / "made").write_bytes(framed(json.dumps(document).encode(), body=BODY))
        try:
            RecordFile(tmp_path / "made")
        except DataLossError:
            refused += 1
    assert refused > 200  # others are harmless: a text for a text


def test_places_outside_of_the_file_are_refused(tmp_path: Path) -> None:
    for place in (Place(HEADER.size, 1 << 40), Place(1 << 40, 1), Place(0, 4), Place(HEADER.size + len(BODY), 1)):
        text = json.dumps(meta(parts={"job": place}).to_json()).encode()
        (tmp_path / "made").write_bytes(framed(text, body=BODY))
        with pytest.raises(DataLossError, match="its metadata refers to"):
            RecordFile(tmp_path / "made")


def test_another_version_is_reported(tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(framed(json.dumps(meta().to_json()).encode(), version=FORMAT_VERSION + 1))
    with pytest.raises(DataLossError, match="version 2, this build reads version 1"):
        RecordFile(tmp_path / "made")


def test_the_page_names_the_version() -> None:
    page = Path(__file__).parents[2] / "docs" / "formats" / "recovery.md"
    assert f"version {FORMAT_VERSION}" in page.read_text(encoding="utf-8").splitlines()[0]


def test_a_folder_returns_its_files_in_order_and_skips_damaged_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RecordFolder(str(tmp_path), 1, 4)
    for number in (2, 10, 3):
        write(folder.path_of(number, 99), meta(number=number))
    folder.path_of(4, 99).write_bytes(b"cut off")
    RecordFolder(str(tmp_path), 0, 4).path_of(1, 5).write_bytes(b"of another server")
    (tmp_path / "ps-1-of-4.record-000000000011-0000000000000063.tmp").write_bytes(b"not finished")
    with caplog.at_level(logging.WARNING):
        assert [file.meta.number for file in folder.found()] == [2, 3, 10]
    assert "000000000004-0000000000000063'" in caplog.text
    assert folder.highest_number() == 10
    folder.make()
    assert not list(tmp_path.glob("*.tmp"))


def test_of_two_writers_of_one_number_the_one_that_claimed_the_record_counts(tmp_path: Path) -> None:
    folder = RecordFolder(str(tmp_path), 1, 4)
    for writer in (99, 7):
        write(folder.path_of(2, writer), meta(number=2, writer=writer))
    folder.claim(7)
    assert [file.meta.writer for file in folder.found()] == [7]
    assert folder.is_claimed_by(7)
    assert not folder.is_claimed_by(99)
