"""Truncated, flipped, swapped and foreign files are refused with file, offset and reason, and change no table."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from monolith import _core
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError, OpError
from monolith.tables import HashTable, Segment, TableConfig, TableGroup, filters
from monolith.tables.snapshot import read_manifest, restore, save
from monolith.tables.snapshot.manifest import MANIFEST_NAME, SnapshotManifest
from tables.snapshot_cases import group_state, item_config, some_ids, state_of, train, trained_group, two_tables


class Victim:
    """A small snapshot to damage, and a table with other rows that must stay as it is."""

    def __init__(self, folder: Path, num_files: int) -> None:
        self.folder = folder
        source = HashTable(item_config())
        train(source, some_ids(40))
        save(source.store, folder, num_files=num_files)
        self.saved = state_of(source)
        self.table = HashTable(item_config())
        train(self.table, some_ids(60, seed=21), seed=22, time=4242)
        self.before = state_of(self.table)
        self.files = [folder / file.name for file in read_manifest(folder).files]

    def refusal(self) -> str:
        """The message with which a restore refuses; the table is compared row by row."""
        with pytest.raises((DataLossError, NotFoundError)) as caught:
            restore(self.table.store, self.folder)
        assert state_of(self.table) == self.before
        return str(caught.value)

    def refuses(self) -> None:
        """The same without the comparison: only the number of rows and the newest time are looked at."""
        with pytest.raises((DataLossError, NotFoundError)):
            restore(self.table.store, self.folder)
        assert (len(self.table), self.table.newest_time) == (len(self.before), 4242)


def overwrite(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # truncating in place makes some file systems flush at close
    path.write_bytes(content)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path / "snapshot", 3)


@pytest.mark.slow
def test_thousands_of_flipped_bits_in_bucket_files_are_all_refused(victim: Victim) -> None:
    random = np.random.default_rng(31)
    for path in victim.files:
        content = path.read_bytes()
        size = len(content)
        # every bit of header and footer, and random ones of blocks and index
        bits = [*range(32 * 8), *range((size - 48) * 8, size * 8), *random.integers(0, size * 8, 700).tolist()]
        for bit in bits:
            overwrite(path, flipped(content, bit))
            victim.refuses()
        overwrite(path, content)
    restore(victim.table.store, victim.folder)
    assert state_of(victim.table) == victim.saved


@pytest.mark.slow
def test_a_bucket_file_of_any_other_length_is_refused(tmp_path: Path) -> None:
    victim = Victim(tmp_path / "snapshot", 64)
    path = min(victim.files, key=lambda file: file.stat().st_size)
    content = path.read_bytes()
    for length in range(len(content)):
        overwrite(path, content[:length])
        victim.refuses()
    for tail in (b"\0", b"x" * 8, content):
        overwrite(path, content + tail)
        victim.refuses()


def test_every_flipped_bit_of_the_manifest_is_refused(victim: Victim) -> None:
    path = victim.folder / MANIFEST_NAME
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        with pytest.raises(DataLossError, match=r"manifest\.json': offset \d+: "):
            SnapshotManifest.from_bytes(flipped(content, bit), origin=f"file '{path}'")
    for bit in np.random.default_rng(32).integers(0, 8 * len(content), 200).tolist():
        overwrite(path, flipped(content, bit))
        victim.refuses()


def test_a_manifest_of_any_other_length_is_refused(victim: Victim) -> None:
    content = (victim.folder / MANIFEST_NAME).read_bytes()
    for length in range(len(content)):
        with pytest.raises(DataLossError):
            SnapshotManifest.from_bytes(content[:length], origin="file")
    with pytest.raises(DataLossError):
        SnapshotManifest.from_bytes(content + b"\n", origin="file")


@pytest.mark.slow
def test_random_damage_of_all_kinds_is_refused(victim: Victim) -> None:
    random = np.random.default_rng(33)
    for _ in range(1500):
        path = victim.files[random.integers(len(victim.files))]
        content = path.read_bytes()
        at, length = int(random.integers(len(content))), int(random.integers(1, 200))
        damaged = {
            0: content[:at] + random.bytes(min(length, len(content) - at)) + content[at + length :],
            1: content[:at] + content[at + length :],
            2: content[:at] + content[at // 2 : at // 2 + length] + content[at:],
            3: content[:at] + bytes(min(length, len(content) - at)) + content[at + length :],
            4: random.bytes(len(content)),
        }[int(random.integers(5))]
        if damaged == content:
            continue
        overwrite(path, damaged)
        victim.refuses()
        overwrite(path, content)


def test_swapped_bucket_files_are_refused(victim: Victim) -> None:
    first, second = (path.read_bytes() for path in victim.files[:2])
    overwrite(victim.files[0], second)
    overwrite(victim.files[1], first)
    victim.refusal()


def test_a_file_of_another_snapshot_of_the_same_table_is_refused(victim: Victim, tmp_path: Path) -> None:
    other = Victim(tmp_path / "other", 3)
    shutil.copy(other.files[1], victim.files[1])
    assert "another snapshot" in victim.refusal()


def test_a_manifest_of_another_snapshot_misses_its_files(victim: Victim, tmp_path: Path) -> None:
    other = Victim(tmp_path / "other", 3)
    shutil.copy(other.folder / MANIFEST_NAME, victim.folder / MANIFEST_NAME)
    assert "No such file" in victim.refusal()


@pytest.mark.parametrize("content", [b"", b"PAR1" * 100, b"\0" * 4096, b"MSNF" + b"\xff" * 4096, b"{}\n", b"null"])
def test_foreign_files_are_refused(victim: Victim, content: bytes) -> None:
    good = victim.files[1].read_bytes()
    overwrite(victim.files[1], content)
    assert f"file '{victim.files[1]}': offset " in victim.refusal()
    overwrite(victim.files[1], good)
    overwrite(victim.folder / MANIFEST_NAME, content)
    assert "manifest.json': offset " in victim.refusal()


def test_a_missing_file_is_named(victim: Victim) -> None:
    victim.files[2].unlink()
    assert victim.files[2].name in victim.refusal()


def test_a_message_names_file_offset_and_reason(victim: Victim) -> None:
    content = victim.files[0].read_bytes()
    overwrite(victim.files[0], flipped(content, 8 * 32))
    assert f"file '{victim.files[0]}': offset 32: not a row block: magic is" in victim.refusal()
    overwrite(victim.files[0], flipped(content, 8 * 80))
    assert "checksum of the row block is" in victim.refusal()
    overwrite(victim.files[0], content[:-1])
    assert f"the file is {len(content) - 1} bytes long, the manifest has {len(content)}" in victim.refusal()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 2', '"version": 3'),
        ('"generation": 0', '"generation": 1'),
        ('"state": true', '"state": false'),
        ('"extra": null', '"extra": 1'),
        ('"begin": 0', '"begin": 1'),
    ],
)
def test_an_edited_manifest_is_refused(victim: Victim, old: str, new: str) -> None:
    path = victim.folder / MANIFEST_NAME
    text = path.read_text()
    assert old in text
    overwrite(path, text.replace(old, new, 1).encode())
    assert "manifest.json': offset " in victim.refusal()


def test_names_that_lead_out_of_the_folder_are_refused(victim: Victim) -> None:
    manifest = read_manifest(victim.folder)
    text = manifest.to_bytes().decode()
    name = manifest.files[0].name
    for bad in ("../" + name, "/etc/passwd", name + ".tmp", "manifest.json"):
        body = text.replace(name, bad)
        start = body.index('"crc32c": ')
        stored = body[start : body.index(",", start) + 1]
        # the checksum is made right, so that the name itself is what is refused
        crc = _core.crc32c(body.replace(f" {stored}\n", "").encode())
        overwrite(victim.folder / MANIFEST_NAME, body.replace(stored, f'"crc32c": {crc},').encode())
        assert "is not the name of a file of this snapshot" in victim.refusal()


def test_a_group_with_another_filter_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    def table(capacity: int) -> HashTable:
        admission = filters.SlidingHashFilter(capacity=capacity)
        return HashTable(TableConfig([Segment(2)], name="rare", min_count=2, admission=admission))

    source, other = table(100_000), table(900_000)
    ones = np.ones((100, 2), np.float32)
    for _ in range(3):
        source.apply_gradients(np.arange(100), ones)
        other.apply_gradients(np.arange(50, 150), ones)
    save(source.store, tmp_path)
    before = state_of(other)
    with pytest.raises(OpError):
        restore(other.store, tmp_path)
    assert state_of(other) == before


def test_a_blank_group_is_blank_again_after_a_refusal(victim: Victim) -> None:
    table = HashTable(item_config())
    content = victim.files[2].read_bytes()
    overwrite(victim.files[2], flipped(content, 4 * len(content)))
    with pytest.raises(DataLossError):
        restore(table.store, victim.folder)
    assert _core.is_blank(table.native.core)
    assert (len(table), table.newest_time) == (0, 0)
    overwrite(victim.files[2], content)
    restore(table.store, victim.folder)
    assert state_of(table) == victim.saved


def test_a_blank_group_is_blank_again_when_a_restore_is_abandoned(victim: Victim) -> None:
    table = HashTable(item_config())
    prepare = partial(table.store.prepare_restore, str(victim.folder), read_manifest(victim.folder))
    with prepare():
        pass
    assert _core.is_blank(table.native.core)
    with prepare() as prepared:
        prepared.load()
    assert state_of(table) == victim.saved


def test_a_group_that_has_only_counted_ids_is_not_blank(tmp_path: Path) -> None:
    admission = filters.SlidingHashFilter(capacity=10_000)
    config = TableConfig([Segment(2)], name="rare", min_count=2, admission=admission)
    table, ones = HashTable(config), np.ones((10, 2), np.float32)
    assert _core.is_blank(table.native.core)
    for _ in range(2):
        table.apply_gradients(np.arange(10), ones)
    assert len(table) == 0
    assert not _core.is_blank(table.native.core)
    save(table.store, tmp_path)
    file = tmp_path / read_manifest(tmp_path).files[0].name
    overwrite(file, flipped(file.read_bytes(), 1000))
    with pytest.raises(DataLossError):
        restore(table.store, tmp_path)
    table.apply_gradients(np.arange(10), ones)
    assert len(table) == 10


def test_an_open_cut_refuses_a_restore_into_a_blank_group(victim: Victim) -> None:
    group = TableGroup({"item": item_config()})
    with group.cut(), pytest.raises(FailedPreconditionError, match="cut is open"):
        restore(group.store, victim.folder)
    assert _core.is_blank(group.native.core)


def test_an_open_cut_refuses_a_restore_and_nothing_changes(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path)
    other = two_tables()
    train(other["user"], some_ids(20, seed=3))
    before = group_state(other)
    with other.cut(), pytest.raises(FailedPreconditionError, match="cut is open"):
        restore(other.store, tmp_path)
    assert group_state(other) == before


def test_damage_in_buckets_that_are_not_wanted_does_not_matter(victim: Victim) -> None:
    overwrite(victim.files[2], b"damaged")
    table = TableGroup({"item": item_config()})
    restore(table.store, victim.folder, buckets=range(100))
    assert state_of(table["item"]).items() <= victim.saved.items()
