"""``monolith serve``: answers requests from exported models, which follow training if a log is given."""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.cli._arguments.serve import ENTRY_OPTIONS
from monolith.cli._option_values import credentials_of, key_values, secret_in, without_none
from monolith.cluster import DiscoveryConfig, discovery_name, is_scheduled, monolith_discovery
from monolith.export import TRUST_VARIABLE, allow_operations, open_export
from monolith.files import join
from monolith.serving import RemotePredictor
from monolith.serving.promotion import Promotion, PromotionConfig, PromotionGate
from monolith.serving.request_log import RequestLogConfig
from monolith.serving.server import (
    LimitsConfig,
    ModelRegistry,
    ModelServer,
    RequestQueueConfig,
    ServerConfig,
    ServingMetrics,
)
from monolith.serving.shards import (
    DiscoveredReplicas,
    ListedReplicas,
    Registration,
    ShardNumber,
    ShardService,
    serve_shard,
    shard_model,
    shard_role,
)

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

    from monolith.serving import TaskModel
    from monolith.serving.server import ServedModel
    from monolith.serving.shards import Replicas

_ENDINGS = (signal.SIGTERM, signal.SIGINT)
_SWITCH_SECONDS = 0.0005
"""How long a thread of Python may keep others waiting: the usual 5 ms are longer than most answers take."""
_PLACES = ("host", "tls_certificate", "tls_key", "tls_client_ca", "lame_duck_seconds", "drain_seconds")


def run(args: argparse.Namespace) -> int:
    """Serves until requested to stop."""
    _refuse_options(args)
    allow_operations(*args.allow_operation)
    if args.trust_exports:
        environment.put(TRUST_VARIABLE, "1")
    logs, gates = _by_model(args, "follow"), _by_model(args, "gate")
    with contextlib.ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_SECONDS)
        server: ModelServer | ShardService
        if args.shard is None:
            server, models = _serve_models(args, logs, gates, stack)
        else:
            name, path = _named(args.models[0])
            server, called, version = _open_shard(name, path, args, follow=_of_model(name, logs), stack=stack)
            models = [{"name": called, "version": version}]
        _require_used("--follow", logs)
        for number in _ENDINGS:
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: server.stop()))
        _tell(server, models, as_json=args.json)
        server.wait()
        sys.stderr.write("ending: requests that are here are answered\n")
    return 0


def _serve_models(
    args: argparse.Namespace, logs: dict[str, str], gates: dict[str, str], stack: contextlib.ExitStack
) -> tuple[ModelServer, list[dict[str, Any]]]:
    if not args.models and args.task is None:
        raise ValueError("give what to serve: monolith serve NAME=PATH, or --task MODULE:CLASS --model_dir DIR")
    registry = ModelRegistry(max_staleness_seconds=args.max_staleness_seconds)
    stack.callback(registry.close)
    kept = without_none({"keep_versions": args.keep_versions, "file": args.promotion_file})
    promotion = Promotion(registry, PromotionConfig(**kept))
    stack.callback(promotion.close)
    for name, path in map(_named, args.models):
        follow = _of_model(name, logs)
        if _is_entry(args):
            _add(registry, name, _open_entry(name, path, args, follow=follow, stack=stack))
        else:
            gate = _of_model(name, gates)
            promotion.add(path, name=name, follow=follow, gate=None if gate is None else PromotionGate.from_file(gate))
    if args.task is not None:
        name, task = _named(args.task)
        _add(registry, name, open_task(task, args.model_dir, follow=_of_model(name, logs)))
    _require_used("--follow", logs)
    _require_used("--gate", gates)
    _require_item_column(registry, args.request_log_item)
    server = stack.enter_context(ModelServer(registry, **_options(args)))
    return server, [{"name": entry.name, "version": entry.version} for entry in registry.entries()]


def _add(registry: ModelRegistry, name: str | None, model: ServedModel) -> None:
    try:
        registry.add(name or model.name, model)
    except BaseException:
        model.close()
        raise


def _by_model(args: argparse.Namespace, option: str) -> dict[str, str]:
    """Returns the value of an option for each model by name; "" stands for the only model."""
    values: dict[str, str] = {}
    for text in getattr(args, option):
        name, place = _named(text)
        if not name and len(args.models) + (args.task is not None) > 1:
            raise ValueError(f"--{option}: there are several models; write --{option} NAME={place}")
        if (name or "") in values:
            raise ValueError(f"--{option}: a model has one, got another one: {text}")
        values[name or ""] = place
    return values


def _of_model(name: str | None, values: dict[str, str]) -> str | None:
    return values.pop(name or "", None) or values.pop("", None)


def _require_used(option: str, left: dict[str, str]) -> None:
    unused = [name for name in left if name]
    if unused:
        raise ValueError(f"{option}: there is no model {unused[0]!r}; a model is named as NAME=PATH")


def _named(text: str) -> tuple[str | None, str]:
    """Returns name and path; a path may contain '=' after its first '/'."""
    name, equals, place = text.partition("=")
    if not equals or "/" in name or not name:
        return None, text
    if not place:
        raise ValueError(f"a model is written NAME=PATH, got {text!r}")
    return name, place


def _options(args: argparse.Namespace) -> dict[str, Any]:
    rules = {
        "threads": args.threads,
        "max_wait_seconds": None if args.max_wait_ms is None else args.max_wait_ms / 1e3,
        "batch_examples": args.batch_examples,
        "batch_delay_seconds": None if args.batch_delay_ms is None else args.batch_delay_ms / 1e3,
    }
    limits = {
        "body_bytes": args.max_body_bytes,
        "examples": args.max_examples,
        "connections": args.max_connections,
        "request_seconds": args.request_seconds,
    }
    places = {name: getattr(args, name) for name in _PLACES}
    token = secret_in(args.token_file)
    return {
        **without_none(places),
        "port": args.port,
        "grpc_port": args.grpc_port,
        "metrics_port": args.metrics_port,
        "token": token,
        "queue": RequestQueueConfig(**without_none(rules)),
        "limits": LimitsConfig(**without_none(limits)),
        "request_log": _request_log(args),
    }


def _request_log(args: argparse.Namespace) -> RequestLogConfig | None:
    options = without_none({"share": args.request_log_share, "item_column": args.request_log_item})
    if args.request_log_kafka:
        options["kafka"] = key_values(args.request_log_kafka, "--request_log_kafka")
    if args.request_log is None and options:
        ending = {"share": "_share", "item_column": "_item", "kafka": "_kafka"}[next(iter(options))]
        raise ValueError(f"--request_log{ending} is for a log of requests; give its place: --request_log PLACE")
    return None if args.request_log is None else RequestLogConfig(place=args.request_log, **options)


def _require_item_column(registry: ModelRegistry, column: str | None) -> None:
    for entry in registry.entries() if column is not None else ():
        known = sorted({name for signature in entry.model.signatures.values() for name in signature.inputs})
        if column not in known:
            raise ValueError(
                f"--request_log_item: model {entry.name!r} has no column {column!r}; it reads {', '.join(known)}"
            )


def _tell(server: ModelServer | ShardService, models: list[dict[str, Any]], *, as_json: bool) -> None:
    """Where it listens, on standard output once it does."""
    ports = {"port": server.port, "grpc_port": server.grpc_port, "metrics_port": server.metrics_port}
    if as_json:
        sys.stdout.write(json.dumps({"host": server.options.host, **ports, "models": models}) + "\n")
    else:
        scheme = "http" if server.options.tls_certificate is None else "https"
        for model in models:
            place = f"{scheme}://{server.options.host}:{server.port}/v1/models/{model['name']}"
            if not isinstance(server, ModelServer):
                place = f"{server.options.host}:{server.grpc_port} over gRPC"
            sys.stdout.write(f"serving {model['name']}, version {model['version']}: {place}\n")
        for name in ("grpc_port", "metrics_port"):
            if ports[name] is not None:
                sys.stdout.write(f"{name.removesuffix('_port')} on port {ports[name]}\n")
    sys.stdout.flush()


def open_task(task: str, model_dir: str | None, *, follow: str | None) -> TaskModel:
    """Returns the model of a task."""
    if model_dir is None:
        raise ValueError("--model_dir: must name the folder of the checkpoints of --task, got none")
    if follow is not None:
        raise ValueError(
            "--follow: a log has rows for serving, and --task has those of training; newer checkpoints of --model_dir"
            " are loaded instead. Export the model to follow a log"
        )
    # Serving of exports needs no training code.
    importlib.import_module("monolith.cli._run_options").find_tasks_here()
    params = importlib.import_module("monolith.train").find_task(task)
    model: TaskModel = importlib.import_module("monolith.serving").TaskModel(params, model_dir)
    return model


_GRPC_PORT = 8500
_DISCOVERY = ("discovery_dir", "zk_server", "deep_insight_name", "uuid")
_OF_A_QUEUE = ("max_wait_ms", "batch_examples", "batch_delay_ms", "request_seconds", "max_examples", "max_body_bytes")
_PROMOTION = ("gate", "keep_versions", "promotion_file")
_GRAPHS = ("allow_operation", "trust_exports")


def _is_entry(args: argparse.Namespace) -> bool:
    """Returns whether models have their rows at shards that are listed or discovered."""
    return args.shard is None and (args.shards is not None or args.discovery_type is not None)


def _refuse_options(args: argparse.Namespace) -> None:
    """Refuses what would have no effect."""
    if args.shard is not None and args.shards is not None:
        raise ValueError("--shards: it is for the entry, which queries shards, and --shard makes this process a shard")
    if args.shards is not None and args.discovery_type is not None:
        raise ValueError("--shards: shards are listed, or found by --discovery_type; give one of them")
    if (args.shard is not None or _is_entry(args)) and (len(args.models) != 1 or args.task is not None):
        raise ValueError("with shards a process serves one export: monolith serve NAME=PATH --shard I/N, or --shards")
    if args.shard is not None:
        _refuse(args, _OF_A_QUEUE, "a shard has no queue: each lookup is answered as it comes")
        _refuse(args, ("request_log",), "a shard sees ids alone; log requests at the entry that queries it")
    if args.shard is not None or _is_entry(args) or not args.models:
        _refuse(args, _PROMOTION, "it is for exports whose rows this process has; a shard, an entry or a task has none")
    _refuse_of_graphs(args)
    if args.shard is None or args.discovery_type is None:
        _refuse(args, ("replica",), "it is the number that a --shard registers with, at --discovery_type")
    if not _is_entry(args):
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


def _open_entry(
    name: str | None, path: str, args: argparse.Namespace, *, follow: str | None, stack: contextlib.ExitStack
) -> RemotePredictor:
    """Returns the entry of an export, with its shards as the command names them; what it needs is left to the stack."""
    limits = {option: getattr(args, option) for option in ("max_rpc_deadline_millis", "hedge_millis", "lost_shards")}
    return RemotePredictor(
        path,
        _replicas(name, path, args, stack),
        model=name,
        follow=follow,
        threads=args.threads or 1,
        trial=True,
        credentials=credentials_of(args, secret_in(args.shard_token_file), prefix="shard_"),
        **without_none(limits),
    )


def _open_shard(
    name: str | None, path: str, args: argparse.Namespace, *, follow: str | None, stack: contextlib.ExitStack
) -> tuple[ShardService, str, int]:
    """Returns one shard that serves; its name in requests, and its version."""
    number = ShardNumber.parse(args.shard)
    model = name or open_export(join(path, f"ps_{number.index}")).manifest.name
    options = ServerConfig(
        **without_none({option: getattr(args, option) for option in _PLACES}),
        port=args.port,
        grpc_port=_GRPC_PORT if args.grpc_port is None else args.grpc_port,
        metrics_port=args.metrics_port,
        token=secret_in(args.token_file),
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
        **without_none({"threads": args.threads, "max_staleness_seconds": args.max_staleness_seconds}),
    )
    stack.callback(shard.close)
    service = stack.enter_context(ShardService(shard, options, metrics=metrics, registration=registration))
    return service, called, shard.version.export


def _replicas(name: str | None, path: str, args: argparse.Namespace, stack: contextlib.ExitStack) -> Replicas:
    if args.shards is not None:
        return ListedReplicas([[address.strip() for address in shard.split(",")] for shard in args.shards.split(";")])
    manifest = open_export(path).manifest
    if not manifest.shards:
        raise ValueError(f"'{path}': it was not exported for shards; export it with shards=N, or omit --discovery_type")
    return DiscoveredReplicas(stack.enter_context(_discovery(args)), name or manifest.name, manifest.shards)


def _refuse_staleness(args: argparse.Namespace) -> None:
    if not args.follow:
        _refuse(args, ("max_staleness_seconds",), "without --follow nothing gets stale")
    if args.max_staleness_seconds is not None and args.max_staleness_seconds <= 0:
        raise ValueError(f"--max_staleness_seconds must be > 0, got {args.max_staleness_seconds}")


def _discovery(args: argparse.Namespace) -> AbstractContextManager[Any]:
    if is_scheduled(args.discovery_type) or discovery_name(args.discovery_type) == "ray":
        raise ValueError(
            "--discovery_type: shards register with host, zk, consul or a service of another package, got"
            f" {args.discovery_type}; give one of them"
        )
    settings = without_none({option: getattr(args, option) for option in _DISCOVERY})
    return monolith_discovery(DiscoveryConfig(discovery_type=args.discovery_type, **settings))


def _refuse(args: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    unused = [option for option in names if getattr(args, option) not in (None, [], False)]
    if unused:
        raise ValueError(f"--{unused[0]}: {why}")
