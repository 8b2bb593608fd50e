"""`EmbeddingTask`: a task for TPUs whose tables follow from a vocabulary and from what its `logits_fn` looks up."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import fsspec
import torch
from torch import nn

from monolith.data import Batch, DenseColumn, FileSet, Ints, Label, MergedDataset, Parser, RecordDataset
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.files import join
from monolith.nn import Embeddings
from monolith.tensors import Ragged
from monolith.tpu.feature_columns import Env
from monolith.tpu.vocabulary import (
    QR_COLLISION_RATE,
    QR_THRESHOLD,
    Vocabulary,
    find_vocabulary_file,
    looked_up_as,
    make_configs,
    read_vocabulary,
    slots_of,
)
from monolith.train import Spec, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from monolith.data import Dataset
    from monolith.nn import EmbeddingOutputs
    from monolith.tpu.vocabulary import TableFeature, VocabularyTable
    from monolith.train import Mode
    from monolith.train.parameters import InstantiableParams, Params


class EmbeddingTask(Task):
    """A task that reads files of ``tf.train.Example`` and looks ids up in vocabulary tables.

    A subclass defines `build_layers`, the dense modules, and `logits_fn`, whose lookups declare the slots and columns.
    `model_fn` is the log loss of the logits, and may be overridden.

    >>> from monolith.tpu import EmbeddingTask
    >>> class Ranker(EmbeddingTask):
    ...     def build_layers(self):
    ...         self.top = nn.Linear(12, 1)
    ...     def logits_fn(self, features):
    ...         user = self.env.slot(200, 8).column("fc_user")
    ...         item = self.env.slot(201, 4).column("fc_item")
    ...         return self.top(torch.cat([user.lookup(), item.lookup()], 1)).squeeze(1)
    """

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.env = Env()
        """The slots, and in `logits_fn` access to their rows."""
        self.num_hosts = 1
        """Number of hosts whose shares of the files are read round-robin; set by the runner."""
        self._features: Mapping[str, TableFeature] = {}
        self._tables: Mapping[str, VocabularyTable] = {}

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the parameters, with the vocabulary and the days of the data."""
        p = super().params()
        p.define("vocab_file_path", None, "File of lines slot<TAB>count.")
        p.define("vocab_size_per_slot", None, "One vocabulary size for all slots, to try something quickly.")
        p.define("custom_vocab_size_mapping", None, "Slot -> vocabulary size, for some slots.")
        p.define("vocab_size_offset", None, "Added to each vocabulary size of the file.")
        p.define("qr_multi_hashing", True, "Divide large vocabularies into tables of remainders and of quotients.")
        p.define("qr_hashing_threshold", QR_THRESHOLD, "Vocabularies above this are large.")
        p.define("qr_collision_rate", QR_COLLISION_RATE, "Number of ids that share a remainder.")
        p.define("files_interleave_cycle_length", 4, "Number of files read at a time, block by block, round-robin.")
        p.define("gradient_multiplier", 1.0, "Factor of the gradients of rows.")
        p.define("deterministic", False, "Take time from the data and begin with a fixed seed.")
        p.train.define("file_folder", None, "Below which there is a folder for each day; without file_pattern.")
        p.train.define("date_and_file_name_format", "*/*/part*", "Glob of day, folders and files below file_folder.")
        p.train.define("start_date", None, "First day of the data, such as 20201201.")
        p.train.define("end_date", None, "Last day of the data.")
        p.train.define("vocab_file_folder_prefix", None, "What stands before the day in folders of vocabulary files.")
        p.eval.define("file_pattern", None, "What files an evaluation reads; None: those of training.")
        return p

    # What a subclass writes

    def build_layers(self) -> None:
        """Makes the dense modules and assigns them to attributes."""

    def logits_fn(self, features: Mapping[str, Any]) -> Tensor:
        """Returns the logits [B] of a batch.

        Slots and columns are looked up by `env`; it is run once, on zeros, to collect them.

        Args:
            features: The label and the columns of `dense_columns`.
        """
        raise NotImplementedError(f"{type(self).__name__}: write logits_fn(self, features), which returns logits")

    def dense_columns(self) -> Mapping[str, int]:
        """Columns of real numbers, and how many each has."""
        return {}

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Returns the log loss of examples that have a label."""
        with self.looking_up(features):
            logits = self.logits_fn(features)
        if mode == "predict":
            return Spec(predictions=logits.sigmoid())
        label = features[self.p.train.label_key].reshape(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, label)
        return Spec(loss, predictions=logits.sigmoid(), label=label)

    # What a runner uses

    def init_slot_to_env(self) -> None:
        """Runs `logits_fn` once, on zeros, to collect slots and columns; once is enough."""
        if self.env.is_finalized:
            return
        self.env.gradient_multiplier = float(self.p.gradient_multiplier)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # the model itself begins as if nothing had been run
            self.build_layers()
            widths = {**self.dense_columns(), self.p.train.label_key: 1}
            self.logits_fn({name: torch.zeros(1, width) for name, width in widths.items()})
        self.env.finalize()

    def create_feature_and_table_config_dict(self) -> tuple[dict[str, TableFeature], dict[str, VocabularyTable]]:
        """Returns feature -> what it reads, and table -> its size and optimizer; see `make_configs`.

        Raises:
            NotFoundError: there is no vocabulary file.
            InvalidArgumentError: it has a malformed line, or lacks a slot.
        """
        if not self.env.is_finalized:
            raise FailedPreconditionError(f"{type(self).__name__}: collect the slots first, by init_slot_to_env()")
        p = self.p
        path = find_vocabulary_file(
            p.vocab_file_path, folder_prefix=p.train.vocab_file_folder_prefix, end_date=p.train.end_date
        )
        vocabulary = Vocabulary(
            counts=read_vocabulary(path),
            source=path,
            per_slot=p.vocab_size_per_slot,
            custom=p.custom_vocab_size_mapping,
            offset=int(p.vocab_size_offset or 0),
        )
        threshold = int(p.qr_hashing_threshold) if p.qr_multi_hashing else None
        return make_configs(self.env, vocabulary, threshold=threshold, collision_rate=int(p.qr_collision_rate))

    def use_tables(self, features: Mapping[str, TableFeature], tables: Mapping[str, VocabularyTable]) -> None:
        """Takes the tables that the model is built with, and that batches are made for."""
        self._features, self._tables = features, tables

    def build(self) -> None:
        """Builds the dense modules, and one `Embeddings` over all tables."""
        self._require_tables()
        self.build_layers()
        self.emb = Embeddings(slots_of(self._features, self._tables))

    def input_fn(self, mode: Mode) -> Dataset[Batch]:
        """Returns the batches of one replica, with ids as the tables need them.

        The files are divided among the hosts; a host reads `files_interleave_cycle_length` files at a time.
        """
        self._require_tables()
        p = self.p
        size = p.train.per_replica_batch_size if mode == "train" else p.eval.per_replica_batch_size
        size = p.train.per_replica_batch_size if size is None else size
        if size is None:
            raise InvalidArgumentError(f"task {p.name}: train.per_replica_batch_size must be given, got None")
        paths, hosts = self._paths(mode), range(self.num_hosts)
        read = [
            RecordDataset(
                FileSet(paths, shard=(host, self.num_hosts)),
                "tfrecord",
                sample="tf_example",
                cycle_length=int(p.files_interleave_cycle_length),
            ).batch(int(size))
            for host in hosts
        ]
        batches = read[0] if len(read) == 1 else MergedDataset(read)
        examples = batches.parse(Parser("tf_example", self._columns())).map(self._processed)
        return examples.repeat() if p.train.repeat and mode == "train" else examples

    # Inside

    @contextlib.contextmanager
    def looking_up(self, features: Any) -> Iterator[None]:
        """Makes columns of `env` return the rows of a batch inside."""
        rows: EmbeddingOutputs = self.emb(features)
        looked_up: dict[str, Tensor] = {}
        for name, slot in looked_up_as(self._features).items():
            half = self._features[name].half
            whole = name if half is None else name.removesuffix(f"_{half}")
            looked_up[whole] = rows[slot] if whole not in looked_up else looked_up[whole] + rows[slot]
        self.env.looked_up = looked_up
        try:
            yield
        finally:
            self.env.looked_up = None

    def _require_tables(self) -> None:
        """Makes the tables of a task that runs without the TPU runner."""
        if not self._features:
            self.init_slot_to_env()
            self.use_tables(*self.create_feature_and_table_config_dict())

    def _columns(self) -> list[Any]:
        names = dict.fromkeys(feature.column for feature in self._features.values())
        dense = [DenseColumn(name, width=width) for name, width in self.dense_columns().items()]
        return [*(Ints(name) for name in names), *dense, Label(self.p.train.label_key)]

    def _processed(self, batch: Batch) -> Batch:
        """Returns the ids of each feature in its table, and all other columns unchanged."""
        ids = {feature.column for feature in self._features.values()}
        columns: dict[str, Any] = {name: values for name, values in batch.items() if name not in ids}
        for name, slot in looked_up_as(self._features).items():
            feature = self._features[name]
            column = batch[feature.column]
            assert isinstance(column, Ragged)  # noqa: S101 - Ints makes one
            columns[slot] = feature.ids(column)
        return Batch(columns, num_rows=batch.num_rows)

    def _paths(self, mode: Mode) -> str | list[str]:
        train = self.p.train
        if mode != "train" and self.p.eval.file_pattern is not None:
            return str(self.p.eval.file_pattern)
        if train.file_pattern is not None:
            return train.file_pattern  # type: ignore[no-any-return]  # as the user gave it
        if train.file_folder is None or train.end_date is None:
            raise InvalidArgumentError(
                f"task {self.p.name}: give train.file_pattern, or train.file_folder and train.end_date (or"
                " --overwrite_end_date)"
            )
        return files_of_dates(
            train.file_folder, train.date_and_file_name_format, start_date=train.start_date, end_date=train.end_date
        )


def files_of_dates(folder: str, name_format: str, *, start_date: str | None, end_date: str) -> list[str]:
    """Returns the files of a folder from one date to another, both included, sorted.

    Args:
        folder: Folder with a subfolder for each date, on any file system of fsspec.
        name_format: A glob of date, further folders and file names, such as ``*/*/part*``.
        start_date: First date, as the folders are named, such as ``20201201``; None: from the first one.
        end_date: Last date.
    """
    if start_date is not None and start_date > end_date:
        raise InvalidArgumentError(f"dates: start_date must not be after end_date, got {start_date} and {end_date}")
    files, root = fsspec.core.url_to_fs(folder)
    paths = []
    for path in sorted(files.glob(f"{root.rstrip('/')}/{name_format}")):
        date = str(path).removeprefix(root.rstrip("/")).lstrip("/").partition("/")[0]
        if (start_date is None or start_date <= date) and date <= end_date:
            paths.append(str(files.unstrip_protocol(path)).removeprefix("file://"))
    if not paths:
        raise NotFoundError(
            f"no file matches '{join(folder, name_format)}' from {start_date or 'the first day'} to {end_date}"
        )
    return paths
