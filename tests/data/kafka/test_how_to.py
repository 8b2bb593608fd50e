"""The how-to of Kafka runs as it stands, and names every option."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from data.framed_files import framed, samples
from kafka_cluster import KafkaCluster
from monolith.data import Framing, KafkaConfig


@pytest.mark.usefixtures("nothing_left_behind")
def test_example_runs(cluster: KafkaCluster, project_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.spread("clicks", [framed(Framing.PLAIN, samples(8))] * 8)
    text = (project_root / "docs" / "how-to" / "kafka.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    example = example.replace("localhost:9092", cluster.brokers)
    exec(compile(example, "kafka.md", "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    assert capsys.readouterr().out == "0\n"


def test_every_option_is_on_the_page(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / "kafka.md").read_text(encoding="utf-8")
    assert [f.name for f in fields(KafkaConfig) if f.name not in text] == []
