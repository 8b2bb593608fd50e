"""Recovery records that earlier releases wrote are recovered."""

from __future__ import annotations

import json
import logging
import runpy
import shutil
from pathlib import Path

import pytest

from monolith.deltalog.transports.file_transport import FileAppender
from monolith.errors import ResourceExhaustedError, UnavailableError
from monolith.ps import PsServer
from monolith.ps.recovery import RecoveryConfig
from monolith.ps.recovery.old_files import OldFiles
from ps.recorded import states_in

STORED = Path(__file__).parent / "recovery_v1"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A copy of the stored record."""
    return Path(shutil.copytree(STORED / "record", tmp_path / "record"))


@pytest.mark.parametrize("chunk_bytes", [500, 8 << 20])
def test_a_record_of_version_1_is_recovered_and_continues_in_the_log(
    record: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    for module in ("old_files", "increment"):
        monkeypatch.setattr(f"monolith.ps.recovery.{module}.CHUNK_BYTES", chunk_bytes)
    make = runpy.run_path(str(STORED / "make.py"))
    expected = json.loads((STORED / "contents.json").read_text(encoding="utf-8"))
    loaded: list[bytes] = []
    with make["servers"](record) as servers:
        assert not list(record.glob("ps-*"))
        for server in servers:
            server.add_recovered_part("note", bytes, loaded.append)
        found = json.loads(json.dumps(make["contents"]([server.address for server in servers])))
    assert loaded == list(make["PART"].values())
    assert found == expected
    with make["servers"](record) as servers:
        again = make["contents"]([server.address for server in servers])
    assert {name: again[name]["rows"] for name in make["STORES"]} == {
        name: expected[name]["rows"] for name in make["STORES"]
    }


def test_files_of_other_servers_stay(record: Path) -> None:
    PsServer(1, num_ps=2, recovery=RecoveryConfig(str(record))).close(0.0)
    assert not list(record.glob("ps-1-of-2.record*"))
    assert len(list(record.glob("ps-0-of-2.record*"))) == 7
    PsServer(0, num_ps=3, recovery=RecoveryConfig(str(record))).close(0.0)
    assert len(list(record.glob("ps-0-of-2.record*"))) == 7


def test_a_damaged_file_costs_what_it_has_and_what_follows(record: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = sorted(record.glob("ps-0-of-2.record-*"))[-2]
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING), PsServer(0, num_ps=2, recovery=RecoveryConfig(str(record))) as server:
        assert server.recovered is not None
    assert f"'{path}': the checksum of its bytes does not match" in caplog.text
    assert "is missing; all later parts are skipped" in caplog.text


def test_a_server_that_cannot_be_started_leaves_the_files(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in record.iterdir()}
    options = RecoveryConfig(str(record))
    with PsServer(0, num_ps=1) as lives:
        port = int(lives.address.rpartition(":")[2])
        with pytest.raises(UnavailableError):
            PsServer(0, num_ps=2, recovery=options, port=port)
    assert {path.name: path.read_bytes() for path in record.iterdir() if path.is_file()} == before
    with monkeypatch.context() as full:

        def refuse(*_: object) -> None:
            raise ResourceExhaustedError("file: no space left on device")

        full.setattr(FileAppender, "append", refuse)
        with pytest.raises(ResourceExhaustedError):
            PsServer(0, num_ps=2, recovery=options)
    assert {path.name: path.read_bytes() for path in record.iterdir() if path.is_file()} == before
    with PsServer(0, num_ps=2, recovery=options) as server:
        assert server.recovered is not None
    assert states_in(record, 0, 2)


def test_files_without_their_claim_are_removed(record: Path) -> None:
    """As a server leaves them that was killed while it removed them."""
    (record / "ps-0-of-2.record.owner").unlink()
    with PsServer(0, num_ps=2, recovery=RecoveryConfig(str(record))) as server:
        assert server.recovered is None
    assert not list(record.glob("ps-0-of-2.record*"))


def test_the_old_files_are_copied_again_after_a_kill_before_they_are_removed(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RecoveryConfig(str(record))
    with monkeypatch.context() as killed:
        killed.setattr(OldFiles, "remove", lambda _: None)
        first = PsServer(0, num_ps=2, recovery=options)
        assert first.recovered is not None
        rows = first.recovered.rows
        first.close(0.0)
    assert (record / "ps-0-of-2.record.owner").exists()
    with PsServer(0, num_ps=2, recovery=options) as server:
        assert server.recovered is not None
        assert server.recovered.rows == rows
    assert not list(record.glob("ps-0-of-2.record*"))
