"""The examples of the how-to pages run as they stand."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import fsspec
import pytest

from monolith import collective

HOW_TO = Path(__file__).resolve().parent.parent / "docs" / "how-to"
PAGES = [
    "admission-and-expiry.md",
    "collective.md",
    "data-operators.md",
    "datasets.md",
    "erase.md",
    "files.md",
    "layouts.md",
    "metrics-and-logs.md",
    "negative-sampling.md",
    "object-stores.md",
    "parquet.md",
    "row-optimizers.md",
    "shards.md",
    "summaries.md",
]


NEEDED_EXTRAS = {
    "ArrowDataset": "arrow",
    "CsvDataset": "csv",
    "JsonLinesDataset": "csv",
    "JsonParser": "csv",
    "KafkaDataset": "kafka",
    "MetricsEndpoint": "prometheus",
    "ParquetDataset": "parquet",
    "RayDiscovery": "ray",
    "kafka://": "kafka",
    "monolith control": "control",
    "monolith serve ": "serving",
    "s3://": "s3",
    "--num_ps": "ps",
    ".zst": "zstd",
}
"""What the blocks of a page use -> the extra of the package that it needs."""
SAME_PACKAGES = {"ps": {"ps", "ray"}, "control": {"control", "ps", "ray"}}
"""Extra -> those that install its packages, too."""


@pytest.mark.parametrize("page", sorted(path.name for path in HOW_TO.glob("*.md")))
def test_the_extras_that_a_page_needs_are_named_at_its_top(page: str) -> None:
    text = (HOW_TO / page).read_text(encoding="utf-8")
    top = re.split(r"^(?:## |```python)", text, maxsplit=1, flags=re.MULTILINE)[0]
    code = "\n".join(re.findall(r"^```(?:python|bash|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    named = re.compile(r"monolith-torch\[([a-z0-9,]+)\]")
    needed = {extra for use, extra in NEEDED_EXTRAS.items() if use in code}
    needed |= {extra for each in named.findall(text) for extra in each.split(",")}
    at_top = {extra for each in named.findall(top) for extra in each.split(",")}
    assert [each for each in sorted(needed) if not at_top & SAME_PACKAGES.get(each, {each})] == []


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a reader's temporary folders are not removed by the page
    monkeypatch.setenv("MONOLITH_METRIC_PREFIX", "put back afterwards")
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (HOW_TO / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    try:
        for block in blocks:
            exec(compile(block, page, "exec"), {"__name__": "how_to"})  # noqa: S102 - the reader's lines, as they stand
    finally:
        collective.shutdown()
        fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("page", sorted(path.name for path in HOW_TO.glob("discovery-*.md")))
def test_a_page_of_a_discovery_service_answers_four_questions(page: str) -> None:
    text = (HOW_TO / page).read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    titles, bodies = zip(*(section.split("\n", 1) for section in sections), strict=True)
    assert titles == ("What to set", "What it writes", "How to inspect it", "How it fails")
    assert all(body.strip() for body in bodies)
    assert "| You see | Because | Do |" in bodies[-1]


def test_every_discovery_service_has_a_page() -> None:
    names = {"consul", "host-files", "mlp", "ray", "static", "tf-config", "zookeeper"}
    assert {path.stem.removeprefix("discovery-") for path in HOW_TO.glob("discovery-*.md")} == names


def test_every_page_with_examples_is_run_by_some_test() -> None:
    tests = HOW_TO.parents[1] / "tests"
    texts = [path.read_text(encoding="utf-8") for path in tests.rglob("test_*.py") if path.name != "test_readme.py"]
    running = [text for text in texts if "exec(" in text or "subprocess" in text or "main(" in text]
    block = re.compile(r"^```(python|bash)$", re.MULTILINE)
    pages = [path for path in HOW_TO.parent.rglob("*.md") if block.search(path.read_text(encoding="utf-8"))]
    assert len(pages) > 30
    left = {path.name for path in pages if not any(f'"{path.name}"' in text for text in running)}
    assert left == set(), "name the page in a test that runs its blocks"
