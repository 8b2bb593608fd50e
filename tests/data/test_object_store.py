"""The same datasets over an object store: s3fs against a small S3 behind a local HTTP server."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from data.framed_files import framed, samples
from data.object_store import ObjectStore, object_store
from data.pipelines import read_all
from monolith.checkpoint import load
from monolith.data import FileSet, Framing, ParquetDataset, RecordDataset, partition_patterns
from monolith.errors import NotFoundError
from monolith.serving import Predictor
from monolith.testing import ExampleTask
from monolith.train import Params, Trainer, TrainerConfig
from train.job_threads import ThreadJob

s3fs = pytest.importorskip("s3fs")


@pytest.fixture(scope="module", autouse=True)
def loop_of_fsspec() -> None:
    """Starts the threads that fsspec keeps for ever: its loop, and those that look up addresses for it."""

    async def look_up() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, time.sleep, 0.05) for _ in range(4)))

    fsspec.asyn.sync(fsspec.asyn.get_loop(), look_up)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as made:
        yield made
        for system in list(s3fs.S3FileSystem._cache.values()):
            if system._s3 is not None:
                fsspec.asyn.sync(system.loop, system._s3.__aexit__, None, None, None)
                system._s3 = None
        s3fs.S3FileSystem.clear_instance_cache()
        made.wait_for_handlers()


def options(store: ObjectStore) -> dict[str, Any]:
    return {
        "anon": True,
        "endpoint_url": store.url,
        "use_listings_cache": False,
        "client_kwargs": {"region_name": "local"},
        "config_kwargs": {"retries": {"max_attempts": 1}},
    }


def test_records_are_listed_and_read(store: ObjectStore) -> None:
    everything = samples(300)
    for day in range(3):
        part = framed(Framing.TFRECORD, everything[100 * day : 100 * day + 100])
        store.objects[f"clicks/2024010{day + 1}/part-0"] = part
    patterns = partition_patterns("s3://clicks", start_date="20240101", end_date="20240103", wildcard="part-*")
    dataset = RecordDataset(FileSet(patterns, storage_options=options(store)), "tfrecord").batch(64)
    assert [record for block in read_all(dataset) for record in block] == everything[:200]
    with dataset.read() as reading:
        next(reading)
        position = reading.position
    assert [record for block in read_all(dataset, position) for record in block] == everything[64:200]


def test_parquet_reads_only_the_requested_columns(store: ObjectStore) -> None:
    columns = {f"c{number}": pa.array(np.arange(number, 400_000 + number)) for number in range(10)}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, use_dictionary=False, compression="none", row_group_size=100_000)
    store.objects["tables/x.parquet"] = buffer.getvalue()
    files = FileSet("s3://tables/x.parquet", storage_options={**options(store), "default_block_size": 1 << 19})
    batches = read_all(ParquetDataset(files, ["c3"]))
    assert [n for batch in batches for n in batch["c3"]] == list(range(3, 400_003))
    ranges = [request.split("bytes=")[1].split("-") for request in store.requests if "bytes=" in request]
    fetched = sum(int(last) + 1 - int(first) for first, last in ranges)
    assert fetched < 0.5 * len(buffer.getvalue())


def test_a_missing_object_is_named(store: ObjectStore) -> None:
    store.objects["clicks/a"] = b""
    with pytest.raises(NotFoundError, match=r"no file matches 's3://clicks/b\*'"):
        FileSet("s3://clicks/b*", storage_options=options(store))
    dataset = RecordDataset(FileSet("s3://clicks/gone", storage_options=options(store)), "tfrecord")
    with pytest.raises(NotFoundError, match="file 's3://clicks/gone': there is no such file"):
        read_all(dataset)


def test_a_store_that_fails_is_not_the_end_of_the_data(store: ObjectStore) -> None:
    everything = [number.to_bytes(8, "little") * 2000 for number in range(400)]
    store.objects["clicks/a"] = framed(Framing.TFRECORD, everything)
    files = FileSet("s3://clicks/a", storage_options={**options(store), "default_block_size": 1 << 19})
    dataset = RecordDataset(files, "tfrecord", sample="plaintext")
    with dataset.read() as reading:
        first = list(next(reading))
        store.fails_after = 0
        with pytest.raises(OSError, match="withdrawn"):
            list(reading)
        position = reading.position
        store.fails_after = None
    read = [record for block in read_all(dataset, position) for record in block]
    assert first + read == everything


def test_any_file_system_of_fsspec_is_read() -> None:
    system = fsspec.filesystem("memory")
    everything = samples(30)
    system.pipe("/bucket/a.tfrecord", framed(Framing.TFRECORD, everything[:10]))
    system.pipe("/bucket/b.tfrecord", framed(Framing.TFRECORD, everything[10:]))
    try:
        blocks = read_all(RecordDataset("memory://bucket/*.tfrecord", "tfrecord"))
        assert [record for block in blocks for record in block] == everything
    finally:
        system.store.clear()


@pytest.mark.slow
def test_a_job_trains_is_resumed_with_other_servers_and_exports_in_an_object_store(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**options(store), "anon": False, "key": "a", "secret": "b"}
    settings["config_kwargs"] = {**settings["config_kwargs"], "request_checksum_calculation": "when_required"}
    monkeypatch.setitem(fsspec.config.conf, "s3", settings)
    place = "s3://bucket/m"
    for num_ps, num_batches in ((2, 5), (1, 10)):
        job = ThreadJob(
            place, num_ps=num_ps, params=partial(example_params, num_batches), settings={"deterministic": True}
        )
        job.run()
    trained, saved = ExampleTask(example_params(10)), ExampleTask()
    alone = Trainer(trained, TrainerConfig(deterministic=True))
    alone.train()
    load(saved.make_model(), place)
    ids = torch.arange(1000)
    for slot in ("user", "item"):
        assert torch.equal(saved.emb.lookup(slot, ids), trained.emb.lookup(slot, ids))
    batch = next(iter(trained.input_fn("train")))
    exported = alone.export("s3://bucket/e", example=batch)
    with Predictor(exported) as predictor:
        torch.testing.assert_close(predictor.predict(batch).outputs["predictions"], alone.predict(batch))


def example_params(num_batches: int) -> Params:
    made = ExampleTask.params()
    made.num_batches = num_batches
    return made
