"""The how-to of Kafka runs as it stands, and names every option."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from data.framed_files import framed, samples
from kafka_cluster import KafkaCluster
from monolith import cli
from monolith.data import Framing, KafkaConfig


@pytest.mark.usefixtures("nothing_left_behind")
def test_example_runs(cluster: KafkaCluster, project_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.spread("clicks", [framed(Framing.PLAIN, samples(8))] * 8)
    text = (project_root / "docs" / "how-to" / "kafka.md").read_text(encoding="utf-8")
    of_json, of_records = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for example in (of_json, of_records):
        here = example.replace("localhost:9092", cluster.brokers)
        exec(compile(here, "kafka.md", "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    *batches, rest = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[0] for line in batches] == ["Batch(50 rows: user, tags, clicked)"] * 2
    assert sum(float(line.rpartition(" ")[2]) for line in batches) == 50
    assert rest == "0"


def test_peek_shows_the_messages_of_the_page(
    cluster: KafkaCluster, project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.spread("seen", [b'{"user": "ann"}'] * 3)
    text = (project_root / "docs" / "how-to" / "kafka.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^monolith (.*)$", text, re.MULTILINE)
    assert cli.main(shlex.split(command.replace("localhost:9092/views", f"{cluster.brokers}/seen"))) == 0
    assert capsys.readouterr().out.count('15 bytes: {"user": "ann"}') == 3
    assert cli.main(["data", "peek", f"kafka://{cluster.brokers}/seen", "-n", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == '{"user": "ann"}'


def test_every_option_is_on_the_page(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / "kafka.md").read_text(encoding="utf-8")
    assert [f.name for f in fields(KafkaConfig) if f.name not in text] == []
