"""Malformed texts for every parser of small texts: manifests, verdicts on exports, discovery, addresses, lists."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from monolith.checkpoint import get_checkpoint_state
from monolith.checkpoint.manifest import Manifest
from monolith.cluster.addresses import split_address
from monolith.cluster.discovery import HostServiceDiscovery, TfConfigServiceDiscovery
from monolith.cluster.manager import fetch_ps_cluster_from_file
from monolith.errors import OpError
from monolith.export.trial import require_success
from monolith.testing.fake_clock import FakeClock
from monolith.train.compat.flat_config import read_config_file
from system.attack.attempt import Attempt
from system.attack.mutations import MUTATIONS

_TF_CONFIG = b'{"cluster": {"chief": ["a:1"], "ps": ["b:1", "[::1]:2"]}, "task": {"type": "ps", "index": 1}}'
_STATE = b'model_checkpoint_path: "model.ckpt-1"\nall_model_checkpoint_paths: "model.ckpt-1"\n'
_MANIFEST = Manifest(
    step=7,
    generation=1,
    created=1.5,
    kind="full",
    tensors=None,
    meta=None,
    tables={},
    applied={},
    positions={"clicks": b"12"},
    state={"model": {}, "optimizers": {}, "schedules": {}, "extra": {}, "random": {}},
)
_VERDICT = b'{"refused": "export \'x\': bad", "kind": "DataLossError", "seconds": 1.5}'
_WORDS = (b"null", b"[]", b"{}", b"-1", b"1e999", b'"x"', b"[[[[[[", b"NaN", b"\xff", b"\0", b"9" * 400, b",", b"..")


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Passes mutated texts to their parsers: accepted, or rejected by an error that a caller expects."""
    draw = random.Random(f"{seed} texts")  # noqa: S311 - to repeat, not secrets
    parsers = _parsers(folder)
    for _ in itertools.count():
        name, (good, parse) = draw.choice(list(parsers.items()))
        text = _spoilt(good, draw)
        yield _attempt(name, text, parse)


def _attempt(name: str, text: bytes, parse: Callable[[bytes], object]) -> Attempt:
    what = f"{name} of {text[:200]!r}"
    try:
        parse(text)
    except (OpError, OSError, ValueError):
        return Attempt(what, f"{name}: refused")
    except Exception as error:  # noqa: BLE001 - a caller does not expect it from a parser
        return Attempt(what, "failed", f"{type(error).__name__}: {error}")
    return Attempt(what, f"{name}: taken")


def _spoilt(good: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        return draw.choice(list(MUTATIONS.values()))(bytearray(good), draw)
    begin = draw.randrange(len(good) + 1)
    return good[:begin] + draw.choice(_WORDS) + good[begin + draw.choice([0, 1, 4, 1000]) :]


def _parsers(folder: Path) -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    """Returns name -> a valid text, and its parser."""

    def as_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
        return lambda text: parse(text.decode())

    def as_file(path: Path, parse: Callable[[], object]) -> Callable[[bytes], object]:
        path.parent.mkdir(parents=True, exist_ok=True)

        def read(text: bytes) -> object:
            path.write_bytes(text)
            return parse()

        return read

    hosts, servers, state = folder / "hosts", folder / "ps_info", folder / "model"
    options, toml = folder / "options.json", folder / "options.toml"

    def read_state() -> object:
        return get_checkpoint_state(str(state), clock=FakeClock())  # a file that is being replaced is read again

    return {
        "manifest": (_MANIFEST.to_bytes(), lambda text: Manifest.from_bytes(text, origin="manifest")),
        "verdict": (_VERDICT, lambda text: require_success(-(len(text) % 65), text, text, "export")),
        "TF_CONFIG": (_TF_CONFIG, as_text(TfConfigServiceDiscovery)),
        "address": (b"[fe80::1]:2222", as_text(split_address)),
        "host file": (b"10.0.0.1:80", as_file(hosts / "ps" / "0", HostServiceDiscovery(str(hosts)).query_all)),
        "server list": (b"a:1,b:2", as_file(servers, lambda: fetch_ps_cluster_from_file(str(servers), 0))),
        "checkpoint state": (_STATE, as_file(state / "checkpoint", read_state)),
        "JSON options": (b'{"num_ps": 2, "mode": "train"}', as_file(options, lambda: read_config_file(str(options)))),
        "TOML options": (b'num_ps = 2\nmode = "train"\n', as_file(toml, lambda: read_config_file(str(toml)))),
    }
