"""Hooks of synchronous runs on two real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monolith import environment
from ports import free_port


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_ranks_with_unequal_data_and_files_stop_at_the_same_step(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "stop_6").touch()
    (tmp_path / "trainer_0").mkdir()
    for name in ("dump_6", "stop_12"):
        (tmp_path / "trainer_0" / name).touch()
    # What torchrun sets; without it there is one process less to wait for.
    variables = {
        **environment.starting_with(""),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    command = [sys.executable, str(Path(__file__).with_name("two_ranks.py")), str(tmp_path)]
    ranks = [
        subprocess.Popen(
            command, env={**variables, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert seen == [{"eof_step": 3, "stop_step": 6, "saves": True, "saved_steps": [6, 12]}] * 2
