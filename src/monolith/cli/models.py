"""``monolith models``: sets which versions of its models a server uses: labels, canary, shadow, rollback."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.errors import OpError, UnavailableError, UnknownError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_PATH = "/v1/promotion"
_LONGEST_ANSWER = 16 << 20


def run(args: argparse.Namespace) -> int:
    """Send a command, and print how things stand afterwards."""
    fields = _FIELDS[args.action](args)
    name = "" if args.model is None else f"/{urllib.parse.quote(args.model, safe='')}"
    if args.action == "list":
        models = _ask(args, f"{_PATH}{name}", None)["models"]
    else:
        models = {args.model: _ask(args, f"{_PATH}{name}:{args.action}", fields)}
    if args.json:
        sys.stdout.write(json.dumps({"models": models}) + "\n")
    else:
        sys.stdout.write(
            "".join(f"{line}\n" for model_name, model in models.items() for line in _lines(model_name, model))
        )
    return 0


def _label_fields(args: argparse.Namespace) -> dict[str, Any]:
    if args.remove == (args.version is not None):
        raise ValueError("label: give a version, or --remove")
    if args.remove and args.force:
        raise ValueError("label: --force is for a version that is to answer, and has no effect with --remove")
    return {"label": args.label, "version": args.version, "force": args.force}


def _canary_fields(args: argparse.Namespace) -> dict[str, Any]:
    if args.end:
        if args.target is not None or args.share is not None or args.force:
            raise ValueError("canary: --end takes neither a version nor --share nor --force")
        return {"share": 0}
    if args.target is None or args.share is None:
        raise ValueError("canary: give a version or label with --share, or --end")
    if not 0 < args.share <= 1:
        raise ValueError(f"canary: --share must be above 0 and at most 1, got {args.share:g}")
    return {**_target(args.target), "share": args.share, "force": args.force}


def _shadow_fields(args: argparse.Namespace) -> dict[str, Any]:
    if args.end == (args.target is not None):
        raise ValueError("shadow: give a version or label, or --end")
    return {} if args.target is None else _target(args.target)


_FIELDS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "list": lambda _: {},
    "label": _label_fields,
    "canary": _canary_fields,
    "shadow": _shadow_fields,
    "rollback": lambda args: {"version": args.version, "follow": args.follow, "force": args.force},
    "resume": lambda _: {},
}


def _target(text: str) -> dict[str, Any]:
    return {"version": int(text)} if text.isdecimal() else {"label": text}


def _ask(args: argparse.Namespace, path: str, fields: dict[str, Any] | None) -> Any:
    headers = {"content-type": "application/json"}
    if args.token_file is not None:
        token = Path(args.token_file).read_text(encoding="utf-8").strip()
        headers["authorization"] = f"Bearer {token}"
    connection = _connection(args)
    body = None if fields is None else json.dumps(fields)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        text = response.read(_LONGEST_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise UnavailableError(f"{args.url}: no answer: {reason}; is monolith serve there?") from None
    finally:
        connection.close()
    return _answer(args.url, response.status, text)


def _connection(args: argparse.Namespace) -> http.client.HTTPConnection:
    place = urllib.parse.urlsplit(args.url)
    if place.scheme not in ("http", "https") or not place.hostname or place.path.strip("/") or place.query:
        raise ValueError(f"--url: must be http://HOST:PORT or https://HOST:PORT, got {args.url!r}")
    if place.scheme == "http":
        if args.tls_ca is not None:
            raise ValueError("--tls_ca is for https, and the --url is http")
        return http.client.HTTPConnection(place.hostname, place.port, timeout=args.timeout_seconds)
    context = ssl.create_default_context(cafile=args.tls_ca)
    return http.client.HTTPSConnection(place.hostname, place.port, timeout=args.timeout_seconds, context=context)


def _answer(url: str, status: int, text: bytes) -> Any:
    try:
        answer = json.loads(text)
    except ValueError:
        raise UnknownError(f"{url}: answered {status}, and no JSON; is it monolith serve?") from None
    if status != http.client.OK:
        problem = answer.get("error") if isinstance(answer, dict) else None
        raise OpError(str(problem or f"{url}: answered {status}"))
    return answer


def _lines(name: str, model: dict[str, Any]) -> list[str]:
    """Returns a model for people: what answers first, then what was decided."""
    lines = [f"{name}: version {model['answers']} answers"]
    for version in model["versions"]:
        notes = [*version["labels"]]
        notes += ["follows the log"] if version["follows"] else []
        notes += ["as exported"] if version["as_exported"] else []
        notes += [] if version["ready"] else [f"not ready: {version['why_not_ready']}"]
        notes += [] if version["problem"] is None else [version["problem"]]
        lines.append(f"  version {version['version']}: {version['rows']} rows" + "".join(f"; {note}" for note in notes))
    waiting = [
        number for number in model["available"] if number not in {version["version"] for version in model["versions"]}
    ]
    if waiting:
        lines.append(f"  not loaded: {', '.join(map(str, waiting))}")
    lines += [f"  version {number} is refused: {why}" for number, why in model["refused"].items()]
    if model["canary"] is not None:
        lines.append(f"  canary: {_named(model['canary'])} has {model['canary']['share']:.4g} of the requests")
    if model["shadow"] is not None:
        lines.append(f"  shadow: {_named(model['shadow'])}{_compared(model['shadow_scores'])}")
    for kind, verdict in model["gate"].items():
        figures = [f"{name} {_figure(verdict[key])}" for name, key in (("AUC", "auc"), ("calibration", "calibration"))]
        passed = "" if verdict["refused"] is None else "; refused"
        lines.append(f"  gate, last {kind}: {', '.join(figures)}{passed}")
    if "no_commands" in model:
        lines.append(f"  {model['no_commands']}")
    return lines


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _named(target: dict[str, Any]) -> str:
    return f"version {target['version']}" if "version" in target else f"label {target['label']}"


def _compared(scores: dict[str, Any] | None) -> str:
    if scores is None:
        return ""
    mean = scores["mean_absolute_difference"]
    apart = "" if mean is None else f", mean absolute difference {mean:.4g} of {scores['scores']} scores"
    return (
        f" scored {scores['requests']} requests{apart}, {scores['not_finite']} NaN or infinite; {scores['dropped']}"
        f" skipped, {scores['failed']} failed"
    )


_ACTIONS = {
    "list": ("show versions, labels, canary, shadow and results of the gate", "list"),
    "label": ("move a label to a version, which is loaded if it is not, or take it away", "label ranker next 7"),
    "canary": ("send a share of the requests that name no version to one", "canary ranker 7 --share 0.05"),
    "shadow": ("let a version score what others answer, and compare", "shadow ranker 7"),
    "rollback": ("let a version answer until resume, whatever newer ones come", "rollback ranker 6"),
    "resume": ("let the newest version answer again, and try refused ones once more", "resume ranker"),
}
_FORCE = "serve it even if it does not pass the gate"

MEANT = {"--token": "others on this machine could see it; give --token_file"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith models``."""
    parser.description = "Sets which versions a model server (monolith serve) answers with, and shows its state."
    parser.epilog = "example: monolith models canary ranker 7 --share 0.05 --url http://127.0.0.1:8501"
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    parsers = {}
    for name, (description, example) in _ACTIONS.items():
        parsers[name] = actions.add_parser(
            name,
            help=description,
            allow_abbrev=False,  # or --token would be taken for --token_file
            description=f"{description[0].upper()}{description[1:]}.",
            epilog=f"example: monolith models {example}",
        )
        if name == "list":
            parsers[name].add_argument("model", nargs="?", metavar="MODEL", help="name of a model (default: all)")
        else:
            parsers[name].add_argument("model", metavar="MODEL", help="name of the model")
    _add_fields(parsers)
    for action in parsers.values():
        _add_options(action)


def _add_fields(parsers: dict[str, argparse.ArgumentParser]) -> None:
    parsers["label"].add_argument("label", metavar="LABEL", help="stable answers requests that name no version")
    parsers["label"].add_argument("version", nargs="?", type=int, metavar="VERSION", help="number of a version")
    parsers["label"].add_argument("--remove", action="store_true", help="take the label away")
    for name in ("canary", "shadow"):
        parsers[name].add_argument("target", nargs="?", metavar="VERSION", help="number of a version, or a label")
        parsers[name].add_argument("--end", action="store_true", help="end it")
    parsers["canary"].add_argument("--share", type=float, metavar="S", help="from 0 to 1, of requests without version")
    parsers["rollback"].add_argument("version", type=int, metavar="VERSION", help="number of the version")
    parsers["rollback"].add_argument(
        "--follow", action="store_true", help="keep following the delta log (default: rows and weights as exported)"
    )
    for name in ("label", "canary", "rollback"):
        parsers[name].add_argument("--force", action="store_true", help=_FORCE)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default="http://127.0.0.1:8501", help="of the server's HTTP port (default: http://127.0.0.1:8501)"
    )
    parser.add_argument("--token_file", metavar="PATH", help="file with the secret of the server")
    parser.add_argument("--tls_ca", metavar="PEM", help="authorities of the server's certificate, for https")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument(
        "--timeout_seconds",
        type=float,
        default=600.0,
        metavar="S",
        help="a version may have to be loaded (default: 600)",
    )
