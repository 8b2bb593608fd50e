"""Dump files of the original, against a plain Python reader and writer of the same files."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith import _core
from monolith.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from monolith.tables import HashTable, Segment, TableConfig, TableGroup, compressors, row_optimizers
from monolith.tables.formats.entry_dump import (
    entry_counts,
    export_entry_dump,
    export_group_entry_dump,
    import_entry_dump,
    import_group_entry_dump,
    lookup_entry,
)
from monolith.tables.formats.sharded_files import validate_sharded_files
from tables import entry_dump_reference as reference
from tables.snapshot_cases import DAY, EXTREME_IDS, group_state, some_ids, state_of, train, trained_group, two_tables

DIM = 3


def kind_of(optimizer: row_optimizers.RowOptimizer) -> str:
    return optimizer.kernel()[0]


DUMPED = [
    rule()
    for rule in row_optimizers.every_rule()
    if _core.row_optimizer_kind(rule.kind).dump_field or rule is row_optimizers.MovingAverage
]
"""One of each rule that the original knows; it keeps nothing of a moving average, which has no state."""


def table_of(*segments: Segment, **options: Any) -> HashTable:
    return HashTable(TableConfig(list(segments), name="t", **options))


def dim_for(kind: str) -> int:
    return 1 if kind == "batch_softmax" else DIM


def as_floats(state: np.ndarray[Any, Any]) -> list[float]:
    return [float(value) for value in np.frombuffer(state.tobytes(), np.float32)]


def expected_fields(kind: str, state: bytes, dim: int) -> dict[str, list[Any]]:
    """What the dump of a state must say, by the order in which a row keeps it."""
    values = np.frombuffer(state, np.float32).tolist() if len(state) % 4 == 0 else []
    first, second, third = values[:dim], values[dim : 2 * dim], values[2 * dim : 3 * dim]
    return {
        "sgd": {},
        "adagrad": {"norm": first},
        "adadelta": {"accum": first, "accum_update": second},
        "adam": {"m": first, "v": second, "beta1_power": values[-2:-1], "beta2_power": values[-1:]},
        "amsgrad": {
            "m": first,
            "v": second,
            "vhat": third,
            "beta1_power": values[-2:-1],
            "beta2_power": values[-1:],
        },
        "ftrl": {"norm": first, "zero": second},
        "group_ftrl": {"norm": first, "zero": second},
        "group_adagrad": {"grad_square_sum": values},
        "momentum": {"n": first},
        "rmsprop": {"n": first},
        "rmspropv2": {"n": first},
        "batch_softmax": {"global_step": [int.from_bytes(state, "little", signed=True)]},
        "dynamic_wd_adagrad": {
            "norm": first,
            "last_update_step": [int.from_bytes(state[-8:], "little", signed=True)],
        },
    }[kind]


def test_messages_have_the_numbers_of_the_specification() -> None:
    kinds = _core.row_optimizer_kinds()
    numbers = {name: kind.dump_field for name, kind in kinds.items() if kind.dump_field}
    assert numbers == {name: number for name, (number, _) in reference.OPTIMIZER_FIELDS.items()}


@pytest.mark.parametrize("optimizer", DUMPED, ids=kind_of)
def test_dumps_of_every_optimizer_match_what_its_rows_hold(
    tmp_path: Path, optimizer: row_optimizers.RowOptimizer
) -> None:
    kind = kind_of(optimizer)
    table = table_of(Segment(dim_for(kind), optimizer=optimizer))
    train(table, EXTREME_IDS, time=5)
    train(table, EXTREME_IDS[:3], seed=2, time=3_000_000_000)
    (path,) = export_entry_dump(table, tmp_path / "dump")
    assert path.name == "dump-00000-of-00001"
    seen = {}
    for record in reference.records(path.read_bytes()):
        fields = reference.parse(record)
        (key,), (time,) = fields[1], fields[4]
        rows = table.lookup_rows(np.array([key]))
        assert fields[2] == np.asarray(rows.weights)[0].tolist()
        dumps = reference.parse(fields[3][0]).get(1, [])
        state = np.asarray(rows.state)[0].tobytes()
        if kind == "moving_average":
            assert dumps == []
        else:
            assert reference.optimizer_fields(dumps[0], kind) == expected_fields(kind, state, dim_for(kind))
        seen[key] = time
    assert seen == {key: row[2] for key, row in state_of(table).items()}


@pytest.mark.parametrize("optimizer", DUMPED, ids=kind_of)
def test_single_entries_are_their_records_without_the_id_and_nothing_where_no_row_is(
    tmp_path: Path, optimizer: row_optimizers.RowOptimizer
) -> None:
    table = table_of(Segment(dim_for(kind_of(optimizer)), optimizer=optimizer), Segment(1))
    train(table, EXTREME_IDS, time=3_000_000_000)
    (path,) = export_entry_dump(table, tmp_path / "dump")
    records = {reference.parse(record)[1][0]: record for record in reference.records(path.read_bytes())}
    ids = [12345, *EXTREME_IDS, EXTREME_IDS[0]]
    entries = lookup_entry(table, ids)
    assert entries == [b"", *(records[key][9:] for key in [*EXTREME_IDS, EXTREME_IDS[0]])]
    assert 1 not in reference.parse(entries[1])
    assert len(table) == len(EXTREME_IDS)
    assert lookup_entry(table, []) == []


def test_a_serving_table_has_no_entries_to_look_up() -> None:
    table = HashTable(TableConfig([Segment(2)], serving=True))
    with pytest.raises(FailedPreconditionError, match="ServingEntryAccessor doesn't support Save"):
        lookup_entry(table, [1])


@pytest.mark.parametrize("optimizer", DUMPED, ids=kind_of)
def test_rows_of_every_optimizer_are_restored_bit_for_bit(
    tmp_path: Path, optimizer: row_optimizers.RowOptimizer
) -> None:
    dim = dim_for(kind_of(optimizer))
    segments = [Segment(dim, optimizer=optimizer), Segment(1, optimizer=row_optimizers.Adagrad())]
    table, restored = table_of(*segments), table_of(*segments)
    train(table, some_ids(300))
    export_entry_dump(table, tmp_path / "dump", num_shards=3)
    assert import_entry_dump(restored, tmp_path / "dump") == len(table)
    assert state_of(restored) == state_of(table)
    assert restored.newest_time == table.newest_time


def adam_table() -> HashTable:
    return table_of(Segment(1, optimizer=row_optimizers.Adam()), Segment(1, optimizer=row_optimizers.MovingAverage()))


def write_shards(base: Path, shards: list[list[bytes]]) -> None:
    for number, entries in enumerate(shards):
        path = base.with_name(f"{base.name}-{number:05d}-of-{len(shards):05d}")
        path.write_bytes(b"".join(reference.framed(entry) for entry in entries))


def test_upstream_files_are_read(tmp_path: Path) -> None:
    def dump(m: float, v: float, power1: float, power2: float) -> bytes:
        values = [(1, m), (2, v), (3, power1), (4, power2)]
        return reference.message(7, b"".join(reference.floats(field, [value]) for field, value in values))

    shards = [
        [reference.entry(-5, [1.5, 2.5], [dump(0.1, 0.2, 0.3, 0.4)], 77)],
        [],
        [reference.entry(2**63 - 1, [-1.0, 0.0], [dump(1.0, 2.0, 3.0, 4.0)], 99), b"\x15\x00\x00\x80\x3f" * 2],
    ]
    write_shards(tmp_path / "dump", shards)
    table = adam_table()
    train(table, some_ids(20))
    assert import_entry_dump(table, tmp_path / "dump") == 3
    rows = table.lookup_rows(np.array([-5, 2**63 - 1, 0]))
    assert np.asarray(rows.weights).tolist() == [[1.5, 2.5], [-1.0, 0.0], [1.0, 1.0]]
    powers = np.asarray(rows.state).copy().view(np.float32)
    assert powers[0].tolist() == np.array([0.1, 0.2, 0.3, 0.4], np.float32).tolist(), "each power in its own place"
    assert powers[2].tolist() == np.array([0.0, 0.0, 0.9, 0.99], np.float32).tolist(), "no dump: initial state"
    assert np.asarray(rows.time).tolist() == [77, 99, 0], "a record without time has time 0"
    assert (len(table), table.newest_time) == (3, 99), "what the table held is gone"


def test_import_can_keep_what_the_table_holds(tmp_path: Path) -> None:
    table = adam_table()
    train(table, np.array([1, 2]), time=50)
    write_shards(tmp_path / "dump", [[reference.entry(2, [9.0, 9.0], [], 1)]])
    with pytest.raises(InvalidArgumentError, match="id 2: 0 optimizer dumps, the table has 1"):
        import_entry_dump(table, tmp_path / "dump", clear=False)
    write_shards(tmp_path / "dump", [[reference.entry(2, [9.0, 9.0], [reference.message(7, b"")], 1)]])
    import_entry_dump(table, tmp_path / "dump", clear=False)
    assert set(state_of(table)) == {1, 2}
    assert np.asarray(table.lookup(np.array([2]))).tolist() == [[9.0, 9.0]]


@pytest.mark.parametrize(
    ("rows", "wanted", "expected"), [(0, -1, 1), (10, -1, 1), (10, 1, 1), (10, 5, 5), (10, 2000, 2000)]
)
def test_the_number_of_shards_is_as_requested(tmp_path: Path, rows: int, wanted: int, expected: int) -> None:
    table = table_of(Segment(1))
    table.assign(np.arange(rows), np.ones((rows, 1), np.float32))
    paths = export_entry_dump(table, tmp_path / "dump", num_shards=wanted)
    assert len(paths) == expected == len(list(tmp_path.iterdir()))
    restored = table_of(Segment(1))
    assert import_entry_dump(restored, tmp_path / "dump") == rows


@pytest.mark.parametrize("num_shards", [0, -2, 100_000])
def test_a_wrong_number_of_shards_is_refused(tmp_path: Path, num_shards: int) -> None:
    with pytest.raises(InvalidArgumentError, match="num_shards must be -1 or from 1 to 99999"):
        export_entry_dump(table_of(Segment(1)), tmp_path / "dump", num_shards=num_shards)


def test_expired_rows_are_not_written(tmp_path: Path) -> None:
    table = table_of(Segment(1), expire_days=2)
    for key, time in ((1, 0), (2, DAY), (3, 2 * DAY)):
        table.assign(np.array([key]), np.ones((1, 1), np.float32), time=time)
    (path,) = export_entry_dump(table, tmp_path / "dump")
    assert {reference.parse(record)[1][0] for record in reference.records(path.read_bytes())} == {2, 3}
    assert len(table) == 3


BASE = "/models/table"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["/models/other-00000-of-00001"], "Filename /models/other-00000-of-00001 doesn't belong to /models/table"),
        (
            [f"{BASE}-00000-of-00002", f"{BASE}-00001-of-00003"],
            f"Filename {BASE}-00001-of-00003 doesn't match nshards. 2",
        ),
        ([f"{BASE}-00002-of-00002"], f"Shard 2exceeds 2 for {BASE}-00002-of-00002"),
        ([], f"There is no valid sharded files for {BASE}"),
        ([f"{BASE}-00000-of-00001-tmp-7", f"{BASE}-x"], f"There is no valid sharded files for {BASE}"),
        ([f"{BASE}-00000-of-00002"], f"Shard 1 doesn't show up for {BASE}"),
    ],
)
def test_an_incomplete_set_of_files_is_refused_with_the_known_texts(names: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        validate_sharded_files(BASE, names)
    assert str(caught.value) == message


def test_temporary_files_next_to_the_shards_are_ignored(tmp_path: Path) -> None:
    table, restored = table_of(Segment(1)), table_of(Segment(1))
    train(table, some_ids(50))
    export_entry_dump(table, tmp_path / "dump", num_shards=2)
    (tmp_path / "dump-00000-of-00002-tmp-12345").write_bytes(b"torn")
    (tmp_path / "dump2-00000-of-00009").write_bytes(b"of another base")
    assert import_entry_dump(restored, tmp_path / "dump") == len(table)


def test_an_export_does_not_mix_with_an_earlier_one_of_another_size(tmp_path: Path) -> None:
    table = table_of(Segment(1))
    export_entry_dump(table, tmp_path / "dump", num_shards=2)
    export_entry_dump(table, tmp_path / "dump", num_shards=2)
    with pytest.raises(AlreadyExistsError, match="belongs to an earlier dump of 00002 shards; remove it first"):
        export_entry_dump(table, tmp_path / "dump", num_shards=3)


def test_a_record_that_is_no_message_is_refused_with_the_known_text(tmp_path: Path) -> None:
    write_shards(tmp_path / "dump", [[b"foreign bytes"]])
    table = adam_table()
    train(table, some_ids(10))
    before = state_of(table)
    with pytest.raises(FailedPreconditionError, match=r"^Unable to parse data\. Data might be corrupted .*offset 0"):
        import_entry_dump(table, tmp_path / "dump")
    assert state_of(table) == before


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (reference.entry(8, [1.0], [reference.message(7, b"")], 0), "id 8: 1 weights, the table has 2"),
        (reference.entry(8, [1.0] * 3, [reference.message(7, b"")], 0), "id 8: 3 weights, the table has 2"),
        (
            reference.entry(8, [1.0] * 2, [reference.message(1, b"")], 0),
            "segment 0: optimizer dump is 'adagrad', the table has 'adam'",
        ),
        (
            reference.entry(8, [1.0] * 2, [reference.message(7, b"")] * 2, 0),
            "id 8: 2 optimizer dumps, the table has 1",
        ),
        (reference.entry(8, [1.0] * 2, [reference.message(7, b"")], -1), "does not fit into 32 bits"),
    ],
)
def test_rows_of_another_table_are_refused_and_nothing_changes(tmp_path: Path, entry: bytes, reason: str) -> None:
    good = reference.entry(7, [1.0, 1.0], [reference.message(7, b"")], 0)
    write_shards(tmp_path / "dump", [[good, entry]])
    table = adam_table()
    train(table, some_ids(10))
    before = state_of(table)
    with pytest.raises(InvalidArgumentError, match=reason):
        import_entry_dump(table, tmp_path / "dump")
    assert state_of(table) == before


@pytest.mark.slow
def test_damaged_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    table = adam_table()
    train(table, some_ids(5))
    (path,) = export_entry_dump(table, tmp_path / "dump")
    content = path.read_bytes()
    other = adam_table()
    train(other, some_ids(8, seed=3), seed=4, time=3)
    before = state_of(other)
    lengths = [n for n in range(1, len(content)) if n % (len(content) // 12)]
    for length in lengths:  # whole records at the front are a shorter file, which the original cannot tell either
        path.unlink()
        path.write_bytes(content[:length])
        with pytest.raises(DataLossError, match=rf"file '{path}': offset \d+: "):
            import_entry_dump(other, tmp_path / "dump")
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.unlink()
        path.write_bytes(changed)
        with pytest.raises(DataLossError, match=rf"file '{path}': offset \d+: "):
            import_entry_dump(other, tmp_path / "dump")
    assert state_of(other) == before


def test_a_serving_table_takes_the_weights_and_times(tmp_path: Path) -> None:
    segment = Segment(2, optimizer=row_optimizers.Adam(), compressor=compressors.Fp16())
    table = table_of(segment)
    ids = some_ids(30)
    train(table, ids, time=123)
    table.assign(ids[:1], np.zeros((1, 2), np.float32), time=123)
    export_entry_dump(table, tmp_path / "dump")
    weights = np.asarray(table.lookup(ids)).astype(np.float16).astype(np.float32)
    other_optimizer = dataclasses.replace(segment, optimizer=row_optimizers.Sgd())
    serving = table_of(other_optimizer, serving=True)
    assert import_entry_dump(serving, tmp_path / "dump") == len(ids)
    assert np.array_equal(np.asarray(serving.lookup(ids)), weights)
    assert set(np.asarray(serving.lookup_rows(ids).time).tolist()) == {123}
    without_zeros = table_of(segment, serving=True, skip_zero=True)
    assert import_entry_dump(without_zeros, tmp_path / "dump") == len(ids) - 1
    assert not np.asarray(without_zeros.contains(ids[:1])).any()
    with pytest.raises(FailedPreconditionError, match="ServingEntryAccessor doesn't support Save"):
        export_entry_dump(serving, tmp_path / "again")


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    table = table_of(Segment(8))
    table.assign(np.arange(50_000), np.ones((50_000, 8), np.float32))
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(ResourceExhaustedError, match=r"dump-.*\.[0-9a-f]{8}\.tmp.*writing failed"):
            export_entry_dump(table, tmp_path / "dump", num_shards=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def unpacked_stream(path: Path) -> bytes:
    """The record stream inside a compressed data file, by an independent Snappy."""
    cramjam = pytest.importorskip("cramjam")
    content, at, stream = path.read_bytes(), 0, b""
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        stream += bytes(cramjam.snappy.decompress_raw(content[at + 4 : at + 4 + size]))
        at += 4 + size
    return stream


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_group_is_restored_bit_for_bit(tmp_path: Path, num_shards: int) -> None:
    group, restored = trained_group(), two_tables()
    train(restored["item"], some_ids(9, seed=77))
    paths = export_group_entry_dump(group, tmp_path / "dump", num_shards=num_shards)
    assert sorted(path.name for path in paths) == sorted(
        f"dump{kind}-{shard:05d}-of-{num_shards:05d}" for kind in ("", ".meta") for shard in range(num_shards)
    )
    report = import_group_entry_dump(restored, tmp_path / "dump")
    assert group_state(restored) == group_state(group)
    assert (report.ignored_tables, report.missing_tables) == ((), ())
    assert entry_counts(tmp_path / "dump") == {name: len(group[name]) for name in group.names}


def test_data_files_of_a_group_hold_table_after_table(tmp_path: Path) -> None:
    group = trained_group()
    data, meta = export_group_entry_dump(group, tmp_path / "dump")
    announced = [reference.parse(record) for record in reference.records(meta.read_bytes())]
    assert [(fields[1][0].decode(), fields[2][0]) for fields in announced] == [
        (name, len(group[name])) for name in ("item", "user")
    ]
    keys = [reference.parse(record)[1][0] for record in reference.records(unpacked_stream(data))]
    split = len(group["item"])
    assert set(keys[:split]) == set(state_of(group["item"]))
    assert set(keys[split:]) == set(state_of(group["user"]))


def test_upstream_group_files_are_read(tmp_path: Path) -> None:
    cramjam = pytest.importorskip("cramjam")
    sgd = [reference.message(2, b"")]
    stream = b"".join(
        reference.framed(reference.entry(key, weights, sgd, key))
        for key, weights in [(1, [1.0]), (2, [2.0]), (1, [7.0, 8.0]), (5, [9.0]), (6, [10.0])]
    )
    blocks = [stream[at : at + 100] for at in range(0, len(stream), 100)]  # records go on from block to block
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    (tmp_path / "d-00000-of-00001").write_bytes(b"".join(len(block).to_bytes(4, "big") + block for block in packed))
    counts = [("a", 2), ("unknown", 1), ("b", 2)]
    meta = b"".join(reference.framed(reference.metadata(name, count)) for name, count in counts)
    (tmp_path / "d.meta-00000-of-00001").write_bytes(meta)
    group = TableGroup({name: TableConfig([Segment(1)], name=name) for name in ("a", "b", "c")})
    train(group["c"], np.array([4]))
    report = import_group_entry_dump(group, tmp_path / "d", clear=False)
    assert (report.rows, report.ignored_tables, report.missing_tables) == (4, ("unknown",), ("c",))
    assert np.asarray(group["a"].lookup(np.array([1, 2]))).tolist() == [[1.0], [2.0]]
    assert np.asarray(group["b"].lookup(np.array([5, 6]))).tolist() == [[9.0], [10.0]]
    assert len(group["c"]) == 1
    import_group_entry_dump(group, tmp_path / "d")
    assert len(group["c"]) == 0


def test_damaged_group_files_are_refused_with_the_known_texts(tmp_path: Path) -> None:
    group = trained_group(20)
    before = group_state(group)
    data, meta = export_group_entry_dump(group, tmp_path / "dump")
    content = meta.read_bytes()
    for damaged, text in [
        (content[:-1], "Read table metadata failed!"),
        (reference.framed(b"\x0a\x7fshort"), "Parse table metadata failed!"),
        (reference.framed(b"\x0a\x06short"), "Parse table metadata failed!"),
        (reference.framed(reference.metadata("unknown", 10**6)), "Parse entry failed!"),
        (reference.framed(reference.metadata("item", 1)), "more entries than the metadata announces"),
    ]:
        meta.write_bytes(damaged)
        with pytest.raises(DataLossError, match=text):
            import_group_entry_dump(group, tmp_path / "dump")
    meta.write_bytes(content)
    stream = bytearray(data.read_bytes())
    random = np.random.default_rng(41)
    for bit in random.integers(0, 8 * len(stream), 300).tolist():
        stream[bit // 8] ^= 1 << bit % 8
        data.unlink()
        data.write_bytes(stream)
        # a copy of equal bytes from elsewhere is another Snappy block of the same records: it may be accepted
        with contextlib.suppress(DataLossError, InvalidArgumentError):
            import_group_entry_dump(group, tmp_path / "dump")
        assert group_state(group) == before
        stream[bit // 8] ^= 1 << bit % 8
    meta.unlink()
    with pytest.raises(InvalidArgumentError, match="There is no valid sharded files"):
        import_group_entry_dump(group, tmp_path / "dump")
