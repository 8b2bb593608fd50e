"""``monolith serve``: answers requests from exported models, which follow training if a log is given."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.cli._key_values import key_values
from monolith.cli._serving_shards import is_entry, open_entry, open_shard, refuse_options
from monolith.export.allowed_operations import allow_operations
from monolith.export.trial import TRUST_VARIABLE
from monolith.serving.promotion import Promotion, PromotionConfig, PromotionGate
from monolith.serving.request_log import RequestLogConfig
from monolith.serving.server import LimitsConfig, ModelRegistry, ModelServer, RequestQueueConfig

if TYPE_CHECKING:
    import argparse

    from monolith.serving.server import ServedModel
    from monolith.serving.shards.shard_service import ShardService
    from monolith.serving.task_model import TaskModel

_ENDINGS = (signal.SIGTERM, signal.SIGINT)
_SWITCH_SECONDS = 0.0005
"""How long a thread of Python may keep others waiting: the usual 5 ms are longer than most answers take."""
_PLACES = ("host", "tls_certificate", "tls_key", "tls_client_ca", "lame_duck_seconds", "drain_seconds")


def run(args: argparse.Namespace) -> int:
    """Serves until requested to stop."""
    refuse_options(args)
    allow_operations(*args.allow_operation)
    if args.trust_exports:
        environment.put(TRUST_VARIABLE, "1")
    logs, gates = _by_model(args, "follow"), _by_model(args, "gate")
    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_SECONDS)
        server: ModelServer | ShardService
        if args.shard is None:
            server, models = _serve_models(args, logs, gates, stack)
        else:
            name, path = _named(args.models[0])
            server, called, version = open_shard(name, path, args, follow=_of_model(name, logs), stack=stack)
            models = [{"name": called, "version": version}]
        _require_used("--follow", logs)
        for each in _ENDINGS:
            stack.callback(signal.signal, each, signal.signal(each, lambda *_: server.stop()))
        _tell(server, models, as_json=args.json)
        server.wait()
        sys.stderr.write("ending: requests that are here are answered\n")
    return 0


def _serve_models(
    args: argparse.Namespace, logs: dict[str, str], gates: dict[str, str], stack: ExitStack
) -> tuple[ModelServer, list[dict[str, Any]]]:
    if not args.models and args.task is None:
        raise ValueError("give what to serve: monolith serve NAME=PATH, or --task MODULE:CLASS --model_dir DIR")
    registry = ModelRegistry(max_staleness_seconds=args.max_staleness_seconds)
    stack.callback(registry.close)
    kept = _given({"keep_versions": args.keep_versions, "file": args.promotion_file})
    promotion = Promotion(registry, PromotionConfig(**kept))
    stack.callback(promotion.close)
    for name, path in map(_named, args.models):
        follow = _of_model(name, logs)
        if is_entry(args):
            _add(registry, name, open_entry(name, path, args, follow=follow, stack=stack))
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
    found: dict[str, str] = {}
    for text in getattr(args, option):
        name, place = _named(text)
        if not name and len(args.models) + (args.task is not None) > 1:
            raise ValueError(f"--{option}: there are several models; write --{option} NAME={place}")
        if (name or "") in found:
            raise ValueError(f"--{option}: a model has one, got another one: {text}")
        found[name or ""] = place
    return found


def _of_model(name: str | None, given: dict[str, str]) -> str | None:
    return given.pop(name or "", None) or given.pop("", None)


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
    token = None if args.token_file is None else Path(args.token_file).read_text(encoding="utf-8").strip()
    return {
        **_given(places),
        "port": args.port,
        "grpc_port": args.grpc_port,
        "metrics_port": args.metrics_port,
        "token": token,
        "queue": RequestQueueConfig(**_given(rules)),
        "limits": LimitsConfig(**_given(limits)),
        "request_log": _request_log(args),
    }


def _request_log(args: argparse.Namespace) -> RequestLogConfig | None:
    options = _given({"share": args.request_log_share, "item_column": args.request_log_item})
    if args.request_log_kafka:
        options["kafka"] = key_values(args.request_log_kafka, "--request_log_kafka")
    if args.request_log is None and options:
        given = {"share": "_share", "item_column": "_item", "kafka": "_kafka"}[next(iter(options))]
        raise ValueError(f"--request_log{given} is for a log of requests; give its place: --request_log PLACE")
    return None if args.request_log is None else RequestLogConfig(place=args.request_log, **options)


def _require_item_column(registry: ModelRegistry, column: str | None) -> None:
    for entry in registry.entries() if column is not None else ():
        known = sorted({name for signature in entry.model.signatures.values() for name in signature.inputs})
        if column not in known:
            raise ValueError(
                f"--request_log_item: model {entry.name!r} has no column {column!r}; it reads {', '.join(known)}"
            )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


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
    """Returns the model of a task.

    Raises:
        ValueError: an option is missing, or has no effect.
    """
    if model_dir is None:
        raise ValueError("--model_dir: must name the folder of the checkpoints of --task, got none")
    if follow is not None:
        raise ValueError(
            "--follow: a log has rows for serving, and --task has those of training; newer checkpoints of --model_dir"
            " are loaded instead. Export the model to follow a log"
        )
    # Serving of exports needs no training code.
    importlib.import_module("monolith.cli._run_options").find_tasks_here()
    found = importlib.import_module("monolith.train").find_task(task)
    made: TaskModel = importlib.import_module("monolith.serving.task_model").TaskModel(found, model_dir)
    return made
