"""``monolith serve`` for a model whose rows are on shards: one of the shards, or the entry that queries them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.cli._arguments._serve_models import ENTRY_OPTIONS
from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.cluster.runner_settings import DiscoveryConfig, monolith_discovery
from monolith.export.opened import open_export
from monolith.files import join
from monolith.rpc.credentials import ClientCredentials
from monolith.serving.remote_predictor import RemotePredictor
from monolith.serving.server.config import LimitsConfig, ServerConfig
from monolith.serving.server.metrics import ServingMetrics
from monolith.serving.shards.replicas import DiscoveredReplicas, ListedReplicas, shard_role
from monolith.serving.shards.served_shard import serve_shard
from monolith.serving.shards.shard_number import ShardNumber, shard_model
from monolith.serving.shards.shard_service import Registration, ShardService

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.serving.shards.replicas import Replicas

__all__ = ["is_entry", "open_entry", "open_shard", "refuse_options"]

_GRPC_PORT = 8500
_DISCOVERY = ("discovery_dir", "zk_server", "deep_insight_name", "uuid")
_OF_A_QUEUE = ("max_wait_ms", "batch_examples", "batch_delay_ms", "request_seconds", "max_examples", "max_body_bytes")
_PROMOTION = ("gate", "keep_versions", "promotion_file")
_GRAPHS = ("allow_operation", "trust_exports")
_SHARD_PLACES = ("host", "tls_certificate", "tls_key", "tls_client_ca", "lame_duck_seconds", "drain_seconds")


def is_entry(args: argparse.Namespace) -> bool:
    """Returns whether models have their rows at shards that are listed or discovered."""
    return args.shard is None and (args.shards is not None or args.discovery_type is not None)


def refuse_options(args: argparse.Namespace) -> None:
    """Refuses what would have no effect.

    Raises:
        ValueError: names the option.
    """
    if args.shard is not None and args.shards is not None:
        raise ValueError("--shards: it is for the entry, which queries shards, and --shard makes this process a shard")
    if args.shards is not None and args.discovery_type is not None:
        raise ValueError("--shards: shards are listed, or found by --discovery_type; give one of them")
    if (args.shard is not None or is_entry(args)) and (len(args.models) != 1 or args.task is not None):
        raise ValueError("with shards a process serves one export: monolith serve NAME=PATH --shard I/N, or --shards")
    if args.shard is not None:
        _refuse(args, _OF_A_QUEUE, "a shard has no queue: each lookup is answered as it comes")
        _refuse(args, ("request_log",), "a shard sees ids alone; log requests at the entry that queries it")
    if args.shard is not None or is_entry(args) or not args.models:
        _refuse(args, _PROMOTION, "it is for exports whose rows this process has; a shard, an entry or a task has none")
    _refuse_of_graphs(args)
    if args.shard is None or args.discovery_type is None:
        _refuse(args, ("replica",), "it is the number that a --shard registers with, at --discovery_type")
    if not is_entry(args):
        _refuse(args, ENTRY_OPTIONS, "it configures requests to shards, and this process sends none; give --shards")
    _refuse_late_lookups(args)
    if args.task is None:
        _refuse(args, ("model_dir",), "it has the checkpoints of --task; an export is the argument itself")
    _refuse_staleness(args)
    if args.discovery_type is None:
        _refuse(args, _DISCOVERY, "it is of a discovery service; name one with --discovery_type")


def _refuse_late_lookups(args: argparse.Namespace) -> None:
    """Refuses lookups that outlive their request, whose 504 would not name the shard that did not answer."""
    seconds = LimitsConfig().request_seconds if args.request_seconds is None else args.request_seconds
    if (args.max_rpc_deadline_millis or 0) >= seconds * 1000:
        raise ValueError(
            f"--max_rpc_deadline_millis: a lookup of {args.max_rpc_deadline_millis:g} ms does not end before its"
            f" request, which has {seconds:g} s; give less, or a longer --request_seconds"
        )


def _refuse_of_graphs(args: argparse.Namespace) -> None:
    if args.shard is not None or not args.models:
        _refuse(args, _GRAPHS, "it is for exports that this process runs; a shard has rows alone, a task its own code")


def open_entry(
    name: str | None, path: str, args: argparse.Namespace, *, follow: str | None, stack: contextlib.ExitStack
) -> RemotePredictor:
    """Returns the entry of an export, with its shards as the command names them; what it needs is left to the stack."""
    wanted = {each: getattr(args, each) for each in ("max_rpc_deadline_millis", "hedge_millis", "lost_shards")}
    credentials = ClientCredentials(
        token=_secret(args.shard_token_file),
        tls_ca=args.shard_tls_ca,
        tls_certificate=args.shard_tls_certificate,
        tls_key=args.shard_tls_key,
    )
    return RemotePredictor(
        path,
        _replicas(name, path, args, stack),
        model=name,
        follow=follow,
        threads=args.threads or 1,
        trial=True,
        credentials=credentials,
        **_given(wanted),
    )


def open_shard(
    name: str | None, path: str, args: argparse.Namespace, *, follow: str | None, stack: contextlib.ExitStack
) -> tuple[ShardService, str, int]:
    """Returns one shard that serves; its name in requests, and its version."""
    number = ShardNumber.parse(args.shard)
    model = name or open_export(join(path, f"ps_{number.index}")).manifest.name
    options = ServerConfig(
        **_given({each: getattr(args, each) for each in _SHARD_PLACES}),
        port=args.port,
        grpc_port=_GRPC_PORT if args.grpc_port is None else args.grpc_port,
        metrics_port=args.metrics_port,
        token=_secret(args.token_file),
    )
    registration = None
    if args.discovery_type is not None:
        discovery = stack.enter_context(_discovery(args))
        registration = Registration(discovery, shard_role(model, number.index), args.replica or 0)
    metrics, called = ServingMetrics(), shard_model(model, number.index)
    shard = serve_shard(
        model,
        number,
        export=path,
        follow=follow,
        catch_up=False,
        host=options.host,
        port=options.grpc_port,
        credentials=options.credentials(),
        count=lambda signature, seconds, code: metrics.count_answer(called, signature, seconds, code),
        **_given({"threads": args.threads, "max_staleness_seconds": args.max_staleness_seconds}),
    )
    stack.callback(shard.close)
    service = stack.enter_context(ShardService(shard, options, metrics=metrics, registration=registration))
    return service, called, shard.version.export


def _replicas(name: str | None, path: str, args: argparse.Namespace, stack: contextlib.ExitStack) -> Replicas:
    if args.shards is not None:
        return ListedReplicas([[each.strip() for each in shard.split(",")] for shard in args.shards.split(";")])
    manifest = open_export(path).manifest
    if not manifest.shards:
        raise ValueError(f"'{path}': it was not exported for shards; export it with shards=N, or omit --discovery_type")
    return DiscoveredReplicas(stack.enter_context(_discovery(args)), name or manifest.name, manifest.shards)


def _refuse_staleness(args: argparse.Namespace) -> None:
    if not args.follow:
        _refuse(args, ("max_staleness_seconds",), "without --follow nothing gets stale")
    if args.max_staleness_seconds is not None and args.max_staleness_seconds <= 0:
        raise ValueError(f"--max_staleness_seconds must be > 0, got {args.max_staleness_seconds}")


@contextlib.contextmanager
def _discovery(args: argparse.Namespace) -> Any:
    settings = DiscoveryConfig(
        discovery_type=ServiceDiscoveryType[args.discovery_type.upper()],
        **_given({each: getattr(args, each) for each in _DISCOVERY}),
    )
    with monolith_discovery(settings) as service:
        found: ServiceDiscovery | None = service
        yield found


def _refuse(args: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    given = [each for each in names if getattr(args, each) not in (None, [], False)]
    if given:
        raise ValueError(f"--{given[0]}: {why}")


def _secret(path: str | None) -> str | None:
    return None if path is None else Path(path).read_text(encoding="utf-8").strip()


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
