"""Uses of a read-only session: evaluation, and predictions to a file with columns of the input."""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monolith.data.dataset import Dataset
from monolith.errors import OutOfRangeError
from monolith.files import named_errors, replaced_file
from monolith.train.predict.files import prediction_file_for
from monolith.train.predict.rows import PredictionColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from monolith.train.predict.files import PredictionFile
    from monolith.train.predict.rows import Column
    from monolith.train.session import Session

__all__ = ["run_batches", "write_predictions"]


def run_batches(session: Session, source: Any, limit: int | None) -> Iterator[None]:
    """Runs a step for each batch, at most `limit`."""
    done = 0
    with session.feed(source) as feed:
        while not session.stop_requested and (limit is None or done < limit):
            try:
                session.run_next(feed)
            except OutOfRangeError:
                return
            done += 1
            yield


def write_predictions(
    session: Session, source: Any, path: str | os.PathLike[str], *, keys: Sequence[str], limit: int | None
) -> int:
    """Runs a step for each batch, at most `limit`, and writes what it predicts; returns the number of rows."""
    columns = PredictionColumns(keys)
    make = prediction_file_for(path)
    reading = source.read() if isinstance(source, Dataset) else iter(source)
    rows = 0
    try:
        with replaced_file(path) as temporary, _named(make(temporary), path) as write:
            for batch in itertools.islice(reading, limit):
                result = session.run(batch)
                write(columns.of(batch, result.predictions))
                rows += result.num_examples
                if session.stop_requested:
                    break
    finally:
        getattr(reading, "close", lambda: None)()
    return rows


@contextmanager
def _named(file: PredictionFile, path: str | os.PathLike[str]) -> Iterator[Callable[[Mapping[str, Column]], None]]:
    """Yields the write function of a file; its errors name the file, those of input and model are unchanged."""

    def write(columns: Mapping[str, Column]) -> None:
        with named_errors(os.fspath(path), "written"):
            file.write(columns)

    try:
        yield write
    finally:
        with named_errors(os.fspath(path), "written"):
            file.close()
