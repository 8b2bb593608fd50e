"""debugging_info.pb says who takes part in a job, and finds rows on its servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hooks.sessions import FakeSession
from monolith import cli
from monolith.checkpoint import TrainState
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.nn import Embeddings, Slot
from monolith.nn.embeddings.slot_address import SlotAddress
from monolith.ps import PsCluster, PsServer, PsStore
from monolith.rpc.protos import parameter_server_pb2 as wire
from monolith.train import get_debugging_info_file_name
from monolith.train.roles.debugging_info import (
    DebuggingInfo,
    DebuggingInfoHook,
    look_up,
    read_debugging_info,
    write_debugging_info,
)
from ps.server_fixtures import running

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

LARGE = -(1 << 62) + 5
SLOTS = {
    "user": Slot(dim=2),
    "item": Slot(dim=2, id_layout="raw"),
    "hashed": Slot(dim=3, id_layout="any"),
}


@pytest.fixture
def servers() -> Iterator[list[PsServer]]:
    with running(2, token="t") as started:  # noqa: S106 - a test's
        yield started


def test_the_file_has_the_upstream_fields(tmp_path: Path) -> None:
    info = DebuggingInfo(chief_addr="a:1", ps_addrs=("b:2", "c:3"), num_workers=3, features={"user": "{}"})
    write_debugging_info(str(tmp_path), info)
    assert read_debugging_info(str(tmp_path)) == info
    content = Path(get_debugging_info_file_name(str(tmp_path))).read_bytes()
    cluster = b"\x0a\x03a:1\x12\x03b:2\x12\x03c:3"
    feature = b"\x0a\x04user\x12\x02{}"
    assert content == b"\x0a%c" % len(cluster) + cluster + b"\x10\x03" + b"\x1a%c" % len(feature) + feature


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"debugging_info.pb does not exist: the chief of a job"):
        read_debugging_info(str(tmp_path))
    (tmp_path / "debugging_info.pb").write_bytes(b"\xff\xff")
    with pytest.raises(DataLossError, match=r"debugging_info.pb is damaged, or something else"):
        read_debugging_info(str(tmp_path))
    with pytest.raises(DataLossError, match="JSON with its fields expected, got 'no'"):
        SlotAddress.of_text("no")


def test_a_row_is_found_by_slot_and_id_and_the_file_follows_the_servers(
    servers: list[PsServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("t", encoding="utf-8")
    folder = str(tmp_path / "m")
    with PsCluster([server.address for server in servers], token="t") as cluster:  # noqa: S106 - a test's
        emb = Embeddings(SLOTS, store=lambda configs: PsStore(configs, servers=cluster, name="rows"))
        rows = {("user", 7): 1.0, ("user", LARGE): 2.0, ("item", 7): 3.0, ("hashed", LARGE): 4.0, ("item", 8): 5.0}
        for (slot, row_id), value in rows.items():
            vector = np.full((1, SLOTS[slot].dim or 0), value, np.float32)
            emb.assign(slot, torch.tensor([row_id]), vector)
        hook = DebuggingInfoHook(folder, "chief:1", cluster, num_workers=2)
        hook.after_create_session(FakeSession(state=TrainState(model=emb)))
        info = read_debugging_info(folder)
        assert (info.chief_addr, info.num_workers, list(info.ps_addrs)) == ("chief:1", 2, list(cluster.addresses))
        assert sorted(info.features) == sorted(SLOTS)

        servers_of_rows = set()
        for (slot, row_id), value in rows.items():
            found = look_up(info, cluster, slot, row_id)
            assert found is not None
            assert list(found.weights) == [value] * (SLOTS[slot].dim or 0)
            servers_of_rows.add(found.server)
        assert servers_of_rows == {0, 1}
        assert look_up(info, cluster, "user", 8) is None
        with pytest.raises(InvalidArgumentError, match="slot 'usr' does not exist; the slots of the model are: hashed"):
            look_up(info, cluster, "usr", 7)

        debug = ["control", "debug", "--model_dir", folder, "--token_file", str(tmp_path / "token")]
        assert cli.main([*debug, "--slot", "item", "--id", "7", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["slot"], shown["id"], shown["weights"]) == ("item", 7, [3.0, 3.0])
        assert shown["address"] == cluster.addresses[shown["server"]]
        assert cli.main([*debug, "--slot", "user", "--id", str(LARGE)]) == 0
        assert capsys.readouterr().out.endswith(": 2 2\n")
        assert cli.main([*debug, "--slot", "user", "--id", "9"]) == 1
        assert "slot 'user' has no row for id 9 on any of 2 servers" in capsys.readouterr().err

        write_debugging_info(folder, DebuggingInfo(chief_addr="", ps_addrs=(), num_workers=0))
        cluster.move(1, servers[1].address)
        assert list(read_debugging_info(folder).ps_addrs) == list(cluster.addresses)
        emb.store.close()


def test_a_missing_table_is_reported(servers: list[PsServer]) -> None:
    with PsCluster([server.address for server in servers], token="t") as cluster:  # noqa: S106 - a test's
        store = PsStore(Embeddings({"user": Slot(dim=2)})._configs, servers=cluster, name="rows")
        (table,) = store.schema.names
        for request, text in [
            (wire.LookRowRequest(store="rows", table="no"), f"has no table 'no'; it has {table}"),
            (wire.LookRowRequest(store="rows", table=table, bucket=1024), "one below 1024 expected, got 1024"),
            (wire.LookRowRequest(store="other", table=table), "store 'other' does not exist"),
        ]:
            with pytest.raises((NotFoundError, InvalidArgumentError), match=text):
                cluster.ask("LookRow", request)
        store.close()
