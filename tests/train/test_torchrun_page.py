"""docs/how-to/torchrun.md: its commands run as they stand, and its tables say what is so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monolith.train import RunnerConfig
from monolith.train.compat.derive_config import trainer_config_of
from ports import free_port
from programs import Programs

PAGE = "torchrun.md"
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ENDS_HANGS_SECONDS = 280


def run(block: str, folder: Path, programs: Programs) -> str:
    """What it prints; `torchrun` and `python` are those of this interpreter."""
    torchrun = ["-m", "torch.distributed.run", "--local-addr=127.0.0.1"]
    with programs.shell_commands(folder / "bin", torchrun=torchrun, python=[]) as variables:
        variables |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)}
        variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(
            ["/bin/bash", "-euc", block],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=ENDS_HANGS_SECONDS,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ends(said: str) -> list[tuple[str, str, str]]:
    """Rank, number of ranks and step, as they were printed; lines of two ranks may come into each other."""
    return re.findall(r"rank (\d+) of (\d+) ended at step (\d+)", said)


@pytest.mark.slow
@pytest.mark.timeout(5 * ENDS_HANGS_SECONDS)
def test_the_blocks_run_one_after_another(tmp_path: Path, programs: Programs) -> None:
    files, two, _mpi, alone, ahead, three, partial = BLOCKS
    run(files, tmp_path, programs)
    assert sorted(ends(run(two, tmp_path, programs))) == [("0", "2", "20"), ("1", "2", "20")]
    assert "rank 0 of 1 ended at step 60" in run(alone, tmp_path, programs)
    run(ahead, tmp_path, programs)
    steps = {step for _, _, step in ends(run(three, tmp_path, programs))}
    assert len(steps) == 1, "all ranks end at the same step"
    # 60 batches, of which 40 are done, and at most one shorter one for each file that was begun.
    assert 20 + 20 / 3 <= int(steps.pop()) <= 20 + 20
    run(partial, tmp_path, programs)
    assert (tmp_path / "models" / "partial" / "model.ckpt-10.manifest").exists()


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is not installed; on Debian: apt-get install openmpi-bin"
)
def test_mpirun_starts_the_same_ranks(tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"):
        monkeypatch.setenv(name, "1")
    files, _, mpi, *_ = BLOCKS
    run(files, tmp_path, programs)
    ended = sorted(ends(run(mpi.replace("29500", str(free_port())), tmp_path, programs)))
    assert [rank for rank, _, _ in ended] == ["0", "1"]
    assert len({step for _, _, step in ended}) == 1, "at the same step"


def test_a_row_of_the_table_for_each_pipeline_and_no_other() -> None:
    told = set(re.findall(r"`(enable_\w+|embedding_\w+)`", TEXT.partition("## Pipelines")[2].partition("## Check")[0]))
    names = {"embedding_prefetch_capacity", "enable_embedding_postpush", "enable_async_optimize"}
    assert told == names | {"enable_pipelined_fwda2a", "enable_pipelined_bwda2a"}
    given: dict[str, Any] = {name: 1 if name.endswith("capacity") else True for name in told}
    pipeline = trainer_config_of(RunnerConfig(**given, enable_sync_training=True)).pipeline
    assert pipeline.prefetch + pipeline.push_delay == 4, "what the table adds up to"
