"""The arguments of ``monolith serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

MEANT = {
    "--rest_api_port": "it is --port",
    "--model_base_path": "the path of an export is the argument itself: monolith serve PATH",
    "--model_name": "a name is written before the path: monolith serve NAME=PATH",
    "--grpc-port": "it is --grpc_port",
    "--token": "others on this machine could see it; give --token_file",
    "--workers": "calls of models at a time are --threads",
    "--model_config_file": "versions stay by --keep_versions, labels move by: monolith models label",
    "--allow_version_labels_for_unavailable_models": "a label loads the version that it is moved to",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith serve``."""
    parser.allow_abbrev = False  # or --token would be taken for --token_file
    parser.description = (
        "Serves exported models as TF-Serving does: REST under /v1/models/NAME, and the services"
        " PredictionService and ModelService over gRPC. With --follow a model has what training learned within a"
        " second or so. On SIGTERM or SIGINT it answers the requests in flight and ends."
    )
    parser.epilog = "example: monolith serve ranker=models/a/export --follow models/a/delta_log --grpc_port 8500"
    parser.add_argument(
        "models",
        nargs="*",
        metavar="[NAME=]PATH",
        help="an export, or a folder with versions of one, whose newest is served (default name: that of the task)",
    )
    parser.add_argument(
        "--follow",
        action="append",
        default=[],
        metavar="[NAME=]LOG",
        help="the delta log that a model follows: a folder, kafka://HOST:PORT/TOPIC, or a URL; once for each model",
    )
    parser.add_argument(
        "--allow_operation",
        action="append",
        default=[],
        metavar="NAME",
        help="an operation that exports may have besides those of the list, such as aten.segment_reduce: it may crash"
        " the server, so allow it for exports of your own; may be given several times",
    )
    parser.add_argument(
        "--trust_exports",
        action="store_true",
        help="load versions without trying them in a child process first; for exports that only you can write",
    )
    parser.add_argument(
        "--max_staleness_seconds",
        type=float,
        metavar="S",
        help="not ready while the newest event that was learned from is older (default: any age is served)",
    )
    parser.add_argument("--json", action="store_true", help="print where it listens as JSON, once it does")
    group = parser.add_argument_group("a model with its code, where it cannot be exported")
    group.add_argument("--task", metavar="[NAME=]MODULE:CLASS", help="serve this task from its newest checkpoint")
    group.add_argument("--model_dir", metavar="DIR", help="where its checkpoints are; newer ones are loaded")
    _add_shards(parser.add_argument_group("a model whose rows are at shards"))
    _add_discovery(parser.add_argument_group("how shards are found"))
    _add_promotion(parser.add_argument_group("promotion: which version answers"))
    _add_places(parser.add_argument_group("where it listens, and to whom"))
    _add_queue(parser.add_argument_group("what waits, and for how long"))
    _add_limits(parser.add_argument_group("what a client may ask"))
    _add_request_log(parser.add_argument_group("what is written of requests"))


def _add_promotion(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--keep_versions",
        type=int,
        metavar="N",
        help="versions of a model that stay loaded: the one that answers, and the newest others (default: 1)",
    )
    group.add_argument(
        "--promotion_file",
        metavar="PATH",
        help="keeps the decisions of monolith models over restarts; created if missing (default: nothing is kept)",
    )
    group.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="TOML or JSON: labelled examples, and what newer versions and dense weights must reach on them before they"
        " are served",
    )


def _add_places(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", metavar="HOST", help="interface; 0.0.0.0 or :: for all (default: this machine only)")
    group.add_argument("--port", type=int, default=8501, metavar="P", help="of HTTP; 0: a free one (default: 8501)")
    group.add_argument(
        "--grpc_port", type=int, metavar="P", help="of gRPC; 0: a free one (default: none; a shard 8500)"
    )
    group.add_argument("--metrics_port", type=int, metavar="P", help="serve Prometheus metrics here; 0: a free port")
    group.add_argument("--token_file", metavar="PATH", help="file with a secret that clients must send as Bearer token")
    group.add_argument("--tls_certificate", metavar="PATH", help="certificate chain of the server, PEM; turns TLS on")
    group.add_argument("--tls_key", metavar="PATH", help="its private key, PEM")
    group.add_argument("--tls_client_ca", metavar="PATH", help="authorities whose certificates clients must show, PEM")


def _add_queue(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--threads", type=int, metavar="N", help="calls of models at a time (default: 1)")
    group.add_argument("--max_wait_ms", type=float, metavar="MS", help="longer waits are refused (default: 100)")
    group.add_argument("--batch_examples", type=int, metavar="N", help="put together at most (default: 256)")
    group.add_argument("--batch_delay_ms", type=float, metavar="MS", help="waited for others at most (default: 0)")
    group.add_argument("--request_seconds", type=float, metavar="S", help="for an answer at most (default: 10)")
    group.add_argument("--lame_duck_seconds", type=float, metavar="S", help="answers on, not ready (default: 0)")
    group.add_argument("--drain_seconds", type=float, metavar="S", help="for what it has at the end (default: 30)")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max_body_bytes", type=int, metavar="B", help="of a request (default: 16 MiB)")
    group.add_argument("--max_examples", type=int, metavar="N", help="of a request (default: 10000)")
    group.add_argument("--max_connections", type=int, metavar="N", help="over HTTP (default: 1024)")


def _add_request_log(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--request_log",
        metavar="PLACE",
        help="log requests and answers, for monolith joiner and monolith skew: a folder, which servers may share, or"
        " kafka://HOST:PORT/TOPIC",
    )
    group.add_argument("--request_log_share", type=float, metavar="S", help="logged, by request id (default: 0.01)")
    group.add_argument(
        "--request_log_item",
        metavar="COLUMN",
        help="column whose id names the item of an example, as actions do (default: its number in the request)",
    )
    group.add_argument(
        "--request_log_kafka",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="further settings of librdkafka, such as security.protocol=SSL",
    )


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
        "--hedge_millis", type=float, metavar="MS", help="delay before a hedged request (default: a third of that)"
    )
    group.add_argument(
        "--lost_shards", choices=("fail", "zeros"), help="what a shard without replicas means (default: fail)"
    )
    group.add_argument("--shard_token_file", metavar="PATH", help="file with the secret of the shards")
    group.add_argument("--shard_tls_ca", metavar="PATH", help="authorities of their certificates, PEM; turns TLS on")
    group.add_argument("--shard_tls_certificate", metavar="PATH", help="what they are shown, PEM")
    group.add_argument("--shard_tls_key", metavar="PATH", help="its private key, PEM")


def _add_discovery(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--discovery_type", metavar="NAME", help="where shards register: host, zk, consul, or another's")
    group.add_argument("--discovery_dir", metavar="DIR", help="of host: a folder that all of them reach")
    group.add_argument("--zk_server", metavar="HOSTS", help="of zk: servers of ZooKeeper, separated by commas")
    group.add_argument("--deep_insight_name", metavar="NAME", help="of zk: name of the job")
    group.add_argument("--uuid", metavar="NAME", help="of consul: name of the service")
