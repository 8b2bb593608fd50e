"""The arguments of ``monolith serve`` for models with their code, and for models whose rows are at shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

__all__ = ["ENTRY_OPTIONS", "add_model_arguments"]

ENTRY_OPTIONS = (
    "max_rpc_deadline_millis",
    "hedge_millis",
    "lost_shards",
    "shard_token_file",
    "shard_tls_ca",
    "shard_tls_certificate",
    "shard_tls_key",
)
"""Options of the requests to shards."""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    _add_task(parser.add_argument_group("a model with its code, where it cannot be exported"))
    _add_shards(parser.add_argument_group("a model whose rows are at shards"))
    _add_discovery(parser.add_argument_group("how shards are found"))


def _add_task(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--task", metavar="[NAME=]MODULE:CLASS", help="serve this task from its newest checkpoint")
    group.add_argument("--model_dir", metavar="DIR", help="where its checkpoints are; newer ones are loaded")


def _add_shards(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--shard", metavar="I/N", help="serve the rows of this shard alone, such as 0/3, over gRPC")
    group.add_argument("--replica", type=int, metavar="R", help="number that this shard registers with (default: 0)")
    group.add_argument(
        "--shards",
        metavar="ADDRESSES",
        help="serve the entry, with rows of these: HOST:PORT of replicas with ',' between, ';' between shards",
    )
    group.add_argument("--max_rpc_deadline_millis", type=float, metavar="MS", help="of a lookup (default: 3000)")
    group.add_argument(
        "--hedge_millis",
        type=float,
        metavar="MS",
        help="delay before a hedged request (default: a third of that)",
    )
    group.add_argument(
        "--lost_shards", choices=("fail", "zeros"), help="what a shard without replicas means (default: fail)"
    )
    group.add_argument("--shard_token_file", metavar="PATH", help="file with the secret of the shards")
    group.add_argument("--shard_tls_ca", metavar="PATH", help="authorities of their certificates, PEM; turns TLS on")
    group.add_argument("--shard_tls_certificate", metavar="PATH", help="what they are shown, PEM")
    group.add_argument("--shard_tls_key", metavar="PATH", help="its private key, PEM")


def _add_discovery(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--discovery_type", choices=("host", "zk", "consul"), help="where shards register")
    group.add_argument("--discovery_dir", metavar="DIR", help="of host: a folder that all of them reach")
    group.add_argument("--zk_server", metavar="HOSTS", help="of zk: servers of ZooKeeper, separated by commas")
    group.add_argument("--deep_insight_name", metavar="NAME", help="of zk: name of the job")
    group.add_argument("--uuid", metavar="NAME", help="of consul: name of the service")
