"""The page about frames says what the core does: numbers, limits, codes, kinds and vectors."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path

import pytest

from monolith import _core, errors
from monolith.ps.dense.wire import Kind


@pytest.fixture
def page(project_root: Path) -> str:
    return (project_root / "docs" / "formats" / "frames.md").read_text(encoding="utf-8")


def source(root: Path, name: str) -> str:
    return (root / "core" / name).read_text(encoding="utf-8")


def number(text: str, name: str) -> int:
    """The value of a constant or of a field's default, which may be a shifted one."""
    found = re.search(rf"\b{name} = (?:uint64_t\{{(\d+)\}}|(0x[0-9a-f]+|\d+)u?)(?: << (\d+))?;", text)
    assert found is not None, name
    return int(found[1] or found[2], 0) << int(found[3] or 0)


def test_it_is_about_the_version_and_magic_number_that_are_written(project_root: Path, page: str) -> None:
    frame = source(project_root, "rpc/frame.h")
    version = number(frame, "kFrameVersion")
    assert f"# Frames, version {version}\n" in page
    assert f" 2   version, {version}\n" in page
    assert f"magic {number(frame, 'kFrameMagic'):#x} " in page
    assert f"header := {number(frame, 'kHeaderBytes')} bytes" in page


def test_its_limits_are_those_that_are_held(project_root: Path, page: str) -> None:
    frame, protocol = source(project_root, "rpc/frame.h"), source(project_root, "rpc/protocol.h")
    limits = frame[frame.index("struct FrameLimits") :]
    assert f"| head of a greeting; it has no body | {number(protocol, 'kGreetingBytes'):,} |" in page
    assert f"| head | {number(limits, 'head_bytes'):,} |" in page
    assert f"| body | {number(limits, 'body_bytes'):,} |" in page


def test_it_names_every_code_and_its_class(project_root: Path, page: str) -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| `(\w+)` \|$", page, re.MULTILINE)
    assert [int(code) for code, _ in rows] == list(range(len(rows)))
    assert all(hasattr(errors, name) for _, name in rows)
    text = source(project_root, "base/error.h")
    codes = re.findall(r"^  k(\w+),", text[text.index("enum class Code") : text.index("kLastCode")], re.MULTILINE)
    translation = (project_root / "bindings" / "errors.cpp").read_text(encoding="utf-8")
    classes = dict(re.findall(r'case Code::k(\w+): return "(\w+)";', translation))
    assert [name for _, name in rows][: len(codes)] == [classes[code] for code in codes]


def test_its_vectors_are_right_and_those_of_the_core(project_root: Path, page: str) -> None:
    version = number(source(project_root, "rpc/frame.h"), "kFrameVersion")

    def frame(kind: int, call: int, head: bytes, *, head_bytes: int | None = None, body_bytes: int = 0) -> str:
        size = len(head) if head_bytes is None else head_bytes
        front = struct.pack("<4sHHQQII", b"MMLF", version, kind, call, body_bytes, size, 0)
        return (front + struct.pack("<II", _core.crc32c(front), 0) + head).hex()

    def text(content: bytes) -> bytes:
        return struct.pack("<I", len(content)) + content

    written = page[page.index("## Test vectors") :]
    vectors = [re.sub(r"\s", "", block) for block in re.findall(r"(?:^    [0-9a-f ]+\n)+", written, re.MULTILINE)]
    assert vectors == [
        frame(0x0102, 3, b"", head_bytes=4, body_bytes=5),
        frame(1, 0, text(b"secret") + text(b"hello")),
        frame(1, 0, b""),
        frame(0, 0, struct.pack("<I", 8) + text(b"no")),
    ]
    of_core = re.sub(r'"\s*"', "", source(project_root, "rpc/frame_test.cc"))
    assert all(f'"{vector}"' in of_core for vector in vectors)


def test_it_lists_the_kinds_by_their_numbers(project_root: Path, page: str) -> None:
    rows = re.search(r"constexpr uint16_t (kJoin = .*);", source(project_root, "ps/row_messages.h"))
    assert rows is not None
    of_rows = re.findall(r"k(\w+) = (\d+)", rows[1])
    assert len(of_rows) == 5
    for name, kind in of_rows:
        assert f"| {kind} {name.lower()} |" in page
    for dense in Kind:
        assert f"| {dense.value} | {dense.name.lower()} |" in page
    protocol = source(project_root, "rpc/protocol.h")
    assert (number(protocol, "kError"), number(protocol, "kGreeting"), number(protocol, "kFirstOwn")) == (0, 1, 16)


def test_a_server_accepts_the_greeting_of_the_page_and_answers_as_the_page_specifies(page: str) -> None:
    class Silent:
        def greet(self, words: bytes, peer: str) -> bytes:
            assert words == b"hello"
            assert peer.startswith("127.0.0.1:")
            return b""

    written = page[page.index("## Test vectors") :]
    vectors = [bytes.fromhex(block) for block in re.findall(r"(?:^    [0-9a-f ]+\n)+", written, re.MULTILINE)]
    server = _core.FrameServer(host="127.0.0.1", port=0, token="secret", num_threads=1, handler=Silent())  # noqa: S106
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as peer:
        peer.sendall(vectors[1])
        assert peer.recv(len(vectors[2]), socket.MSG_WAITALL) == vectors[2]
    server.stop(0.0)
