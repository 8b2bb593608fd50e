"""Rows of several sources are told apart by the key of their source's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from monolith.data import BadRecords, Batch, Framing, Ids, Parser, RecordReader, source_key
from monolith.data.operators import ByFlow, FromSource, MapIds, NameSources, Value, split_flows
from monolith.data.protos.example_pb2 import Example


def batch_of(names: list[str]) -> Batch:
    keys = torch.tensor([source_key(name) for name in names], dtype=torch.int64)
    return Batch({"data_source_key": keys, "row": torch.arange(len(names))}, num_rows=len(names))


def rows_of(batch: Batch | None) -> list[int]:
    return [] if batch is None else batch["row"].tolist()  # type: ignore[union-attr]


def rows_as_they_are(batch: Batch) -> Batch:
    assert isinstance(batch, Batch), "it is called where there are rows"
    return batch


def test_rows_of_a_source_are_kept() -> None:
    batch = batch_of(["news", "ads_flow", "news", "other"])
    assert rows_of(FromSource("news")(batch)) == [0, 2]
    assert rows_of(FromSource(("news", "ads_flow"))(batch)) == [0, 1, 2]
    assert FromSource("video")(batch) is None


def test_a_stream_is_split_and_nothing_is_lost() -> None:
    flows, rest = split_flows(batch_of(["news", "ads_flow", "news", "other"]), ("ads_flow", "news", "video"))
    assert {name: rows_of(rows) for name, rows in flows.items()} == {"ads_flow": [1], "news": [0, 2], "video": []}
    assert rows_of(rest) == [3]


def test_each_flow_goes_through_its_own_function() -> None:
    negate = MapIds("row", mapping={0: 100, 2: 102})
    operator = ByFlow({"news": negate, "ads_flow": Value("row", op="gt", operand=1)}, others=rows_as_they_are)
    assert rows_of(operator(batch_of(["news", "ads_flow", "news", "ads_flow", "x"]))) == [100, 102, 3, 4]
    assert operator(batch_of(["ads_flow"] * 2)) is None
    assert operator(batch_of([])) is None


def test_rows_of_an_unknown_source_are_an_error_by_default() -> None:
    with pytest.raises(
        ValueError, match=f"1 rows of unknown sources, the first of key {source_key('x')}; known are news"
    ):
        ByFlow({"news": lambda rows: rows})(batch_of(["news", "x"]))


def test_sources_are_named_in_the_batch() -> None:
    named = NameSources(("news",))(batch_of(["news", "x", "news"]))
    assert named["data_source_name"] == [b"news", f"data_source{source_key('x')}".encode(), b"news"]
    assert NameSources(("news",))(batch_of([]))["data_source_name"] == []


def test_names_of_one_key_are_refused() -> None:
    # Java's hash of the two is the same, as everyone knows of "Aa" and "BB".
    with pytest.raises(ValueError, match="'Aa' and 'BB' cannot be distinguished"):
        FromSource(("Aa", "BB"))


def test_keys_come_out_of_the_headers_of_a_file(tmp_path: Path) -> None:
    names = ["news", "ads_flow", "bad", "news"]
    path = tmp_path / "samples"
    with path.open("wb") as file:
        for number, name in enumerate(names):
            example = Example()
            example.named_feature.add(name="user").feature.fid_v2_list.value.append(number)
            payload = b"\xff" if name == "bad" else example.SerializeToString()
            file.write((source_key(name) | 1).to_bytes(8, "little") + len(payload).to_bytes(8, "little") + payload)
    parser = Parser("example", [Ids("user")], bad=BadRecords(limit=1), source_key="data_source_key")
    with RecordReader(path, Framing.LAGRANGEX) as reader:
        (batch,) = (parser.parse(block) for block in reader.blocks())
    assert batch["data_source_key"].tolist() == [source_key("news"), source_key("ads_flow"), source_key("news")]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="there is a column 'user' already"):
        Parser("example", [Ids("user")], source_key="user")
