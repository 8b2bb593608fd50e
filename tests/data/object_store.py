"""A small S3: buckets in memory behind HTTP, enough to list, read, write and remove. It reads no credentials."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

STAMP = "2024-01-01T00:00:00.000Z"


class ObjectStore(ThreadingHTTPServer):
    """Objects by "bucket/key"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.fails_after: int | None = None
        """How many more requests are answered before the store fails."""

    def wait_for_handlers(self) -> None:
        """Until every connection is closed; the clients close theirs first."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any("process_request" in each.name for each in threading.enumerate()):
            time.sleep(0.01)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        thread = threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: ObjectStore
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_PUT(self) -> None:
        name, data = self._name(), self._body()
        if source := self.headers.get("x-amz-copy-source"):
            data = self.server.objects[unquote(source).strip("/")]
        if self._may_answer():
            self.server.objects[name] = data
            self._send(
                200, b"<CopyObjectResult><ETag>tag</ETag></CopyObjectResult>" if source else b"", {"ETag": '"tag"'}
            )

    def do_DELETE(self) -> None:
        if self._may_answer():
            self.server.objects.pop(self._name(), None)
            self._send(204, b"")

    def do_POST(self) -> None:
        """Removes several objects."""
        names = re.findall(r"<Key>(.*?)</Key>", self._body().decode())
        if self._may_answer():
            for name in names:
                self.server.objects.pop(f"{self._name()}/{unescape(name)}", None)
            self._send(200, b'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></DeleteResult>')

    def log_message(self, *_: object) -> None:
        pass

    def _may_answer(self) -> bool:
        store = self.server
        store.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
        if store.fails_after is not None:
            store.fails_after -= 1
            if store.fails_after < 0:
                self._send(403, b"<Error><Code>AccessDenied</Code><Message>the key was withdrawn</Message></Error>")
                return False
        return True

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, *, with_body: bool) -> None:
        store = self.server
        if not self._may_answer():
            return
        name, query = self._name(), parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._send(200, self._listing(name, query))
        elif name in store.objects:
            self._send_object(store.objects[name], with_body=with_body)
        else:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>" if with_body else b"")

    def _send_object(self, data: bytes, *, with_body: bool) -> None:
        status, headers = (
            200,
            {"ETag": '"tag"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT", "Accept-Ranges": "bytes"},
        )
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1 if last else len(data), len(data))
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
            status, data = 206, data[begin:end]
        self._send(status, data, headers, with_body=with_body)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None, *, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def _listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        contents, folders = [], set()
        for name, data in sorted(self.server.objects.items()):
            if not name.startswith(f"{bucket}/{prefix}"):
                continue
            key = name[len(bucket) + 1 :]
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                contents.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{STAMP}</LastModified><ETag>&quot;tag&quot;</ETag>"
                    f"<Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        text = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(contents) + len(folders)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{''.join(contents)}{common}</ListBucketResult>"
        )
        return text.encode()
