"""Processor time of batches over TLS: on the frame port, through the tunnel of the control port, and without TLS."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith import _core
from monolith.cli._bench.measurement import Measurement, RowSkippedError, Sense, median_ratio, spread
from monolith.cli._bench.timing import quiet_collector
from monolith.rpc import ClientCredentials, FrameRelay, RpcServer, ServerCredentials, Tunnel, open_channel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.cli._bench.setting import Setting
    from monolith.rpc import FrameAddress

BATCH_BYTES = 2_560_000
MOST_OF_PLAIN = 4.0
MOST_OF_TUNNEL = 0.5
_ECHO = 64
_CALL_SECONDS = 60.0
_WARM_UP_CALLS = 5


class Echo:
    """Answers each call with as many bytes as it brought."""

    def greet(self, words: bytes, peer: str) -> bytes:
        """Accepts every connection."""
        return words + peer.encode()

    def call(self, words: bytes, kind: int, head: bytes, body: memoryview) -> tuple[bytes, Sequence[memoryview]]:
        """Returns the body."""
        del words, kind
        return head, [memoryview(bytes(body))]


def measure(setting: Setting) -> list[Measurement]:
    """Calls of a batch and calls of one byte, alternately over each way; both ends are in this process."""
    with tempfile.TemporaryDirectory(prefix="monolith-tls-") as folder, ExitStack() as opened:
        certificate, key = _certificate(Path(folder))
        server = ServerCredentials(tls_certificate=certificate, tls_key=key)
        client = ClientCredentials(tls_ca=certificate)
        tls = server.frame_tls(), client.frame_tls()
        if None in tls:
            raise RowSkippedError("the core finds no OpenSSL; install libssl3")
        ways = {
            "plain": opened.enter_context(_client()),
            "core": opened.enter_context(_client(*tls)),
            "tunnel": opened.enter_context(_tunneled_client(server, client)),
        }
        with quiet_collector():
            return [each for size in (BATCH_BYTES, 1) for each in _measure_size(setting, ways, size)]


def _measure_size(setting: Setting, ways: dict[str, Any], size: int) -> list[Measurement]:
    spent: dict[str, list[float]] = {way: [] for way in ways}
    body = b"x" * size
    for _ in range(setting.rounds):
        for way, client in ways.items():
            spent[way].append(1e3 * _turn(client, body, setting.seconds))
    what = "one byte" if size == 1 else f"{size / 1e6:.2f} MB"
    note = ", ".join(f"{way} {spread(figures)} ms" for way, figures in spent.items())

    def against(way: str, peer: str, limit: float) -> Measurement:
        return Measurement(
            row="ps_tls",
            measure=f"processor time of both ends for a call of {what} each way, TLS on the frame port",
            figure=statistics.median(spent["core"]),
            unit="ms",
            peer=peer,
            peer_figure=statistics.median(spent[way]),
            ratio=median_ratio(spent["core"], spent[way]),
            limit=limit,
            sense=Sense.AT_MOST,
            note=note,
        )

    return [
        against("tunnel", "through the control port", MOST_OF_TUNNEL),
        against("plain", "without TLS", MOST_OF_PLAIN),
    ]


def _turn(client: Any, body: bytes, seconds: float) -> float:
    """Returns the processor time of a call, the mean of about `seconds`."""
    for _ in range(_WARM_UP_CALLS):
        client.begin(0, _ECHO, b"", [body], None, _CALL_SECONDS).wait()
    count, begun, cpu = 0, time.perf_counter(), time.process_time()
    while count == 0 or time.perf_counter() - begun < seconds:
        client.begin(0, _ECHO, b"", [body], None, _CALL_SECONDS).wait()
        count += 1
    return (time.process_time() - cpu) / count


@contextmanager
def _frames(tls: _core.TlsContext | None = None) -> Iterator[_core.FrameServer]:
    server = _core.FrameServer(host="127.0.0.1", port=0, token="", num_threads=1, handler=Echo(), tls=tls)
    try:
        yield server
    finally:
        server.stop(0.0)


@contextmanager
def _connected(address: FrameAddress) -> Iterator[Any]:
    client = _core.FrameClient([address], [b"echo"])
    try:
        yield client
    finally:
        client.close()


@contextmanager
def _client(server_tls: _core.TlsContext | None = None, client_tls: _core.TlsContext | None = None) -> Iterator[Any]:
    with _frames(server_tls) as server:
        address: FrameAddress = ("127.0.0.1", server.port)
        if client_tls is not None:
            address = (*address[:2], client_tls)
        with _connected(address) as client:
            yield client


@contextmanager
def _tunneled_client(server: ServerCredentials, client: ClientCredentials) -> Iterator[Any]:
    with _frames() as frames:
        relay = FrameRelay(frames.adopt, server)
        control = RpcServer([relay.handler()], server, name="tunnel", num_threads=1)
        port = control.listen("127.0.0.1:0")
        control.start()
        try:
            with (
                open_channel(f"127.0.0.1:{port}", client) as channel,
                Tunnel(channel) as tunnel,
                _connected(tunnel.address) as connected,
            ):
                yield connected
        finally:
            control.close(0.0)
            relay.close()


def _certificate(folder: Path) -> tuple[str, str]:
    program = shutil.which("openssl")
    if program is None:
        raise RowSkippedError("certificates are made by the program openssl; on Debian: apt-get install openssl")
    certificate, key = str(folder / "server.pem"), str(folder / "server.key")
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    return certificate, key
