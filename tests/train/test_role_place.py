"""Where a process of a job listens, and who hears that it was told to stop."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from monolith.cluster.discovery import HostServiceDiscovery, ServiceDiscovery, TfConfigServiceDiscovery
from monolith.ps.places import stop_servers
from monolith.train.config.job_config import JobConfig
from monolith.train.roles import place as _role_place
from monolith.train.roles.place import RolePlace
from monolith.train.roles.server import run_server

CLUSTER = {"cluster": {"ps": ["node-3.example:7000"]}, "task": {"type": "ps", "index": 0}}


def place_of(discovery: ServiceDiscovery, folder: Path, **settings: Any) -> RolePlace:
    config = JobConfig(**settings)
    return RolePlace(
        role="ps", index=0, num_ps=1, num_workers=1, settings=config, discovery=discovery, model_dir=str(folder)
    )


def test_the_port_is_the_schedulers_and_the_host_is_what_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_role_place, "get_local_host", lambda: "10.0.0.9")
    fixed, free = TfConfigServiceDiscovery(json.dumps(CLUSTER)), HostServiceDiscovery(str(tmp_path))
    assert place_of(fixed, tmp_path).address == "node-3.example:7000"
    assert place_of(fixed, tmp_path, host="127.0.0.1").address == "127.0.0.1:7000"
    assert place_of(free, tmp_path, host="127.0.0.1").address == "127.0.0.1:0"
    assert place_of(free, tmp_path).address == "10.0.0.9:0"


@pytest.mark.parametrize("by_signal", [True, False])
def test_a_server_reports_a_stop_by_signal_but_not_by_its_job(by_signal: bool, tmp_path: Path) -> None:
    discovery, heard, over = HostServiceDiscovery(str(tmp_path)), list[bool](), threading.Event()

    def end() -> None:
        while not over.wait(0.02):  # again and again: it registers before it listens to signals
            if by_signal and discovery.query("ps"):
                os.kill(os.getpid(), signal.SIGTERM)
            elif addresses := discovery.query("ps"):
                stop_servers(list(addresses.values()))

    before, ender = signal.signal(signal.SIGTERM, lambda *_: None), threading.Thread(target=end)
    ender.start()
    try:
        run_server(place_of(discovery, tmp_path, host="127.0.0.1"), on_stop=lambda: heard.append(True))
    finally:
        over.set()
        ender.join()
        signal.signal(signal.SIGTERM, before)
    assert heard == ([True] if by_signal else [])
    assert discovery.query("ps") == {}
