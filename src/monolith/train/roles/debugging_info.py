"""``debugging_info.pb`` of a model directory: processes of a job, and where the rows of its features are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.files import join, text_files
from monolith.hook import Hook
from monolith.nn.embeddings import SlotAddress, slot_addresses
from monolith.ps.client import find_row
from monolith.tables import RemoteRows
from monolith.train.protos import debugging_info_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.hook import HookedSession
    from monolith.ps.client import FoundRow, PsCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class DebuggingInfo:
    """Content of the file."""

    chief_addr: str
    ps_addrs: Sequence[str]
    num_workers: int
    features: Mapping[str, str] = field(default_factory=dict)
    """Name of a feature -> where its rows are, a text of `SlotAddress`."""


def write_debugging_info(model_dir: str, info: DebuggingInfo) -> None:
    """Replaces the file of a model directory."""
    message = messages.DebuggingInfo(
        cluster=messages.Cluster(chief_addr=info.chief_addr, ps_addrs=info.ps_addrs),
        num_workers=info.num_workers,
        feature_name_configs=[
            messages.FeatureNameConfig(feature_name=name, config_str=text) for name, text in info.features.items()
        ],
    )
    text_files.write_bytes(get_debugging_info_file_name(model_dir), message.SerializeToString(deterministic=True))


def read_debugging_info(model_dir: str) -> DebuggingInfo:
    """Returns the content of the file of a model directory."""
    path = get_debugging_info_file_name(model_dir)
    content = text_files.read_bytes(path)
    if content is None:
        raise NotFoundError(f"{path} does not exist: the chief of a job with parameter servers writes it at its start")
    try:
        message = messages.DebuggingInfo.FromString(content)
    except DecodeError as error:
        raise DataLossError(f"{path} is damaged, or something else: {error}") from error
    return DebuggingInfo(
        chief_addr=message.cluster.chief_addr,
        ps_addrs=tuple(message.cluster.ps_addrs),
        num_workers=message.num_workers,
        features={feature.feature_name: feature.config_str for feature in message.feature_name_configs},
    )


def look_up(info: DebuggingInfo, cluster: PsCluster, slot: str, row_id: int) -> FoundRow | None:
    """Returns the row of an id of a slot, as the servers have it now; None: there is none."""
    if slot not in info.features:
        known = ", ".join(sorted(info.features)) or "none"
        raise InvalidArgumentError(f"slot {slot!r} does not exist; the slots of the model are: {known}")
    address = SlotAddress.of_text(info.features[slot])
    return find_row(cluster, address.store, address.table, *address.key_of(row_id))


class DebuggingInfoHook(Hook):
    """Writes the file when a session starts, and again when the address of a server changes. Chief only."""

    def __init__(self, model_dir: str, chief_addr: str, cluster: PsCluster, num_workers: int) -> None:
        self._model_dir = model_dir
        self._chief_addr = chief_addr
        self._cluster = cluster
        self._num_workers = num_workers
        self._features: dict[str, str] = {}

    def after_create_session(self, session: HookedSession) -> None:
        """Takes the features of the model."""
        self._features = {
            name: address.to_text()
            for embeddings in session.state.embeddings.values()
            if isinstance(embeddings.store, RemoteRows)
            for name, address in slot_addresses(embeddings, embeddings.store.name).items()
        }
        self._write()
        self._cluster.on_move(self._moved)

    def _moved(self, index: int) -> None:  # noqa: ARG002 - as the cluster calls it
        self._write()

    def _write(self) -> None:
        info = DebuggingInfo(
            chief_addr=self._chief_addr,
            ps_addrs=self._cluster.addresses,
            num_workers=self._num_workers,
            features=self._features,
        )
        write_debugging_info(self._model_dir, info)


def get_debugging_info_file_name(model_dir: str) -> str:
    """Returns the file in which the chief lists the processes of a job; see `monolith.train.roles.debugging_info`.

    >>> get_debugging_info_file_name("/models/ranker")
    '/models/ranker/debugging_info.pb'
    """
    return join(model_dir, "debugging_info.pb")


def get_meta_graph_file_name(model_dir: str) -> str:
    """Returns the file in which ByteDance Monolith describes the model; here `<prefix>.meta` of each checkpoint does.

    >>> get_meta_graph_file_name("/models/ranker")
    '/models/ranker/meta_graph_for_debugging.pb'
    """
    return join(model_dir, "meta_graph_for_debugging.pb")
