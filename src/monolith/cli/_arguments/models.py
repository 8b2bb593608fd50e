"""The arguments of ``monolith models``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

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


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Declares the arguments of ``monolith models``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "models",
        description="Sets which versions a model server (monolith serve) answers with, and shows its state.",
        epilog="example: monolith models canary ranker 7 --share 0.05 --url http://127.0.0.1:8501",
    )
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    made = {}
    for name, (description, example) in _ACTIONS.items():
        made[name] = actions.add_parser(
            name,
            help=description,
            allow_abbrev=False,  # or --token would be taken for --token_file
            description=f"{description[0].upper()}{description[1:]}.",
            epilog=f"example: monolith models {example}",
        )
        if name == "list":
            made[name].add_argument("model", nargs="?", metavar="MODEL", help="name of a model (default: all)")
        else:
            made[name].add_argument("model", metavar="MODEL", help="name of the model")
    _add_fields(made)
    for action in made.values():
        _add_options(action)
    return parser


def _add_fields(made: dict[str, argparse.ArgumentParser]) -> None:
    made["label"].add_argument("label", metavar="LABEL", help="stable answers requests that name no version")
    made["label"].add_argument("version", nargs="?", type=int, metavar="VERSION", help="number of a version")
    made["label"].add_argument("--remove", action="store_true", help="take the label away")
    for name in ("canary", "shadow"):
        made[name].add_argument("target", nargs="?", metavar="VERSION", help="number of a version, or a label")
        made[name].add_argument("--end", action="store_true", help="end it")
    made["canary"].add_argument("--share", type=float, metavar="S", help="from 0 to 1, of requests without version")
    made["rollback"].add_argument("version", type=int, metavar="VERSION", help="number of the version")
    made["rollback"].add_argument(
        "--follow", action="store_true", help="keep following the delta log (default: rows and weights as exported)"
    )
    for name in ("label", "canary", "rollback"):
        made[name].add_argument("--force", action="store_true", help=_FORCE)


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
