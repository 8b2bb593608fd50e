"""Compressed streams: ours are read by others, theirs by us, and one that is cut or damaged is never a short file."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import cramjam
import pytest
import zstandard

from data.framed_files import framed, samples
from monolith.data import BadRecords, Compression, Framing, RecordPosition, read_examples, write_examples
from monolith.errors import DataLossError

PACKED = [kind for kind in Compression if kind not in {Compression.FROM_NAME, Compression.NONE}]


def hadoop_snappy(data: bytes, *, block: int, chunk: int) -> bytes:
    """Blocks of several chunks, lengths big-endian."""
    stream = b""
    for at in range(0, len(data), block):
        whole = data[at : at + block]
        stream += struct.pack(">I", len(whole))
        for begin in range(0, len(whole), chunk):
            packed = bytes(cramjam.snappy.compress_raw(whole[begin : begin + chunk]))
            stream += struct.pack(">I", len(packed)) + packed
    return stream


def packed_by_others(kind: Compression, data: bytes) -> bytes:
    if kind is Compression.SNAPPY:
        return hadoop_snappy(data, block=3000, chunk=700)
    if kind is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=5).compress(data)
    return zlib.compress(data) if kind is Compression.ZLIB else gzip.compress(data)


def unpacked_by_others(kind: Compression, data: bytes) -> bytes:
    if kind is Compression.SNAPPY:
        unpacked, at = b"", 0
        while at < len(data):
            size, packed = struct.unpack_from(">II", data, at)
            chunk = bytes(cramjam.snappy.decompress_raw(data[at + 8 : at + 8 + packed]))
            assert len(chunk) == size
            unpacked, at = unpacked + chunk, at + 8 + packed
        return unpacked
    if kind is Compression.ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return zlib.decompress(data) if kind is Compression.ZLIB else gzip.decompress(data)


@pytest.mark.parametrize("kind", PACKED)
def test_streams_of_others_are_read(kind: Compression) -> None:
    payloads = samples(500)
    stream = io.BytesIO(packed_by_others(kind, framed(Framing.PLAIN, payloads)))
    assert list(read_examples(stream, compression=kind)) == payloads


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("framing", [Framing.PLAIN, Framing.TFRECORD])
def test_others_read_what_is_written(tmp_path: Path, kind: Compression, framing: Framing) -> None:
    payloads = [*samples(50), b"y" * 2_000_000, b""]
    path = tmp_path / "packed"
    write_examples(path, payloads, framing, compression=kind)
    assert unpacked_by_others(kind, path.read_bytes()) == framed(framing, payloads)
    assert list(read_examples(path, framing, compression=kind, sample="plaintext")) == payloads


@pytest.mark.parametrize("kind", PACKED)
def test_reading_resumes_after_any_record(tmp_path: Path, kind: Compression) -> None:
    payloads = samples(200)
    path = tmp_path / "packed"
    write_examples(path, payloads, compression=kind)
    for count in (0, 1, 77, 199, 200):
        with read_examples(path, compression=kind) as reader:
            records = iter(reader)
            read = [next(records) for _ in range(count)]
            assert read + list(read_examples(path, compression=kind, start=reader.position)) == payloads
            assert read + list(reader) == payloads
    with pytest.raises(DataLossError, match="past the end"):
        read_examples(path, compression=kind, start=RecordPosition(1 << 30, 5))


@pytest.mark.parametrize("kind", PACKED)
def test_a_stream_cut_anywhere_is_an_error(kind: Compression) -> None:
    data = packed_by_others(kind, framed(Framing.PLAIN, samples(40)))
    # A snappy stream may end behind any block; where that is, the records say whether it is the end.
    for size in range(1, len(data), 7):
        with pytest.raises(DataLossError, match=r"file 'stream': offset \d+.*(truncated|damaged|Snappy)"):
            list(read_examples(io.BytesIO(data[:size]), compression=kind))


@pytest.mark.parametrize("kind", PACKED)
def test_a_file_cut_to_nothing_is_damaged_and_one_of_no_records_is_not(tmp_path: Path, kind: Compression) -> None:
    path = tmp_path / "packed"
    path.touch()
    with pytest.raises(DataLossError, match=rf"packed': there are no bytes, and a {kind.name} stream .*truncated"):
        read_examples(path, compression=kind)
    bad = BadRecords(limit=1)
    assert (list(read_examples(path, compression=kind, bad=bad)), bad.count) == ([], 1)
    write_examples(path, [], compression=kind)
    assert path.stat().st_size > 0
    assert list(read_examples(path, compression=kind)) == []


def test_only_a_snappy_stream_of_nothing_has_a_block_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.snappy"
    write_examples(path, [])
    assert path.read_bytes() == bytes(4)
    for payload in (b"x" * ((1 << 18) - 8), b"x"):  # the first fills a block, and nothing is left to be flushed
        write_examples(path, [payload])
        assert not path.read_bytes().endswith(bytes(4))
        assert unpacked_by_others(Compression.SNAPPY, path.read_bytes()) == framed(Framing.PLAIN, [payload])


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("other", PACKED)
def test_a_wrong_compression_is_an_error(kind: Compression, other: Compression) -> None:
    data = packed_by_others(kind, framed(Framing.PLAIN, samples(40)))
    if kind is other:
        return
    with pytest.raises(DataLossError, match=r"file 'stream': offset 0.*(not a|snappy|cut off)"):
        list(read_examples(io.BytesIO(data), compression=other))


@pytest.mark.parametrize("kind", [Compression.ZSTD, Compression.GZIP, Compression.ZLIB])
def test_a_packed_file_read_as_it_is_names_its_compression(kind: Compression) -> None:
    data = packed_by_others(kind, framed(Framing.PLAIN, samples(40)))
    with pytest.raises(DataLossError, match=rf"offset 0.*starts like {kind.name}; give its compression"):
        list(read_examples(io.BytesIO(data), compression="none"))


@pytest.mark.parametrize("kind", [Compression.ZSTD, Compression.GZIP, Compression.ZLIB])
def test_streams_one_after_another_are_one(kind: Compression) -> None:
    payloads = samples(60)
    data = b"".join(packed_by_others(kind, framed(Framing.PLAIN, part)) for part in (payloads[:20], payloads[20:]))
    assert list(read_examples(io.BytesIO(data), compression=kind)) == payloads


def test_every_damaged_byte_of_a_snappy_stream_ends_in_an_error_or_in_bytes() -> None:
    data = packed_by_others(Compression.SNAPPY, framed(Framing.TFRECORD, samples(8)))
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        with pytest.raises(DataLossError, match="offset"):
            list(read_examples(io.BytesIO(damaged), "tfrecord", compression="snappy"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.snappy", Compression.SNAPPY),
        ("a.zst", Compression.ZSTD),
        ("a.ZSTD", Compression.ZSTD),
        ("a.gz", Compression.GZIP),
        ("a.zlib", Compression.ZLIB),
        ("a.tfrecord", Compression.NONE),
        ("snappy", Compression.NONE),
    ],
)
def test_the_name_of_a_file_determines_its_compression(name: str, kind: Compression) -> None:
    assert Compression.FROM_NAME.resolve(f"folder.gz/{name}") is kind
    assert Compression.NONE.resolve(name) is Compression.NONE


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ValueError, match=r"compression must be one of FROM_NAME, NONE, .*got 'lzo'"):
        read_examples(io.BytesIO(b""), compression="lzo")
    assert Compression.of("no") is Compression.NONE
    assert Compression.of("UNKNOW") is Compression.FROM_NAME
    assert [kind.value for kind in Compression] == list(range(6))


@pytest.mark.slow
def test_a_stream_that_swells_is_read_in_pieces() -> None:
    payload = bytes(30_000_000)
    for kind in PACKED:
        data = packed_by_others(kind, framed(Framing.PLAIN, [payload])) if kind is not Compression.SNAPPY else b""
        if data:
            assert list(read_examples(io.BytesIO(data), compression=kind, sample="plaintext")) == [payload]
