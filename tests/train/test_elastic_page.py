"""docs/how-to/elastic-ranks.md runs as it stands: two ranks begin, and three go on."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from monolith.checkpoint import load
from monolith.nn import Embeddings, Slot
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "elastic-ranks.md"
NUM_FILES, LINES = 6, 8


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_the_commands_of_the_page_train_every_example_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torchrun leaves a folder there
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "count_ranks.py").write_text(program, encoding="utf-8")
    (tmp_path / "days").mkdir()
    for number in range(NUM_FILES):
        lines = [json.dumps({"id": line}) + "\n" for line in range(LINES)]
        (tmp_path / "days" / f"{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    (block,) = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    commands = block.splitlines()
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command.replace("torchrun", f"{sys.executable} -m torch.distributed.run", 1))
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    model = nn.ModuleDict({"emb": Embeddings({"id": Slot(1, initializer=Zeros())}, Sgd(learning_rate=1.0))})
    load(model, tmp_path / "model")
    embeddings = model["emb"]
    assert isinstance(embeddings, Embeddings)
    assert embeddings.lookup("id", torch.arange(LINES)).reshape(-1).tolist() == [NUM_FILES] * LINES
