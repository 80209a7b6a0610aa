"""A live view of a run: one page and its data, for browsers on this machine."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from lockstep.errors import UserError
from lockstep.report.collect import collect
from lockstep.report.folder import RunFolder
from lockstep.report.page import make_page

LOCAL = ("127.0.0.1", "localhost", "::1")


class LiveServer(ThreadingHTTPServer):
    """Answers to `/` and `/data.json`, and to nothing else.

    Requests name no files, so none can be asked for; and only those addressed to this very server are answered, lest
    a page from elsewhere reads it through a name that its owner points to this machine.
    """

    daemon_threads = True

    def __init__(self, folder: RunFolder, host: str, port: int) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._cached: tuple[str, dict[str, Any]] = ("", {})
        self._names = {*LOCAL, host.lower()}
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"cannot serve at {host}:{port}: {error}",
                where="--port",
                value=port,
                remedy="name another port, or 0 for any that is free",
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves before its answer has come is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        host = str(self.server_address[0])
        return f"http://{host}:{self.server_address[1]}/"

    def answers_to(self, host: str) -> bool:
        """Whether a request's Host header means this server."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name.lower() in self._names

    def data(self) -> dict[str, Any]:
        """The data of the page, read anew when a file has changed."""
        with self._lock:
            fingerprint = self.folder.fingerprint()
            if self._cached[0] != fingerprint:
                self._cached = (fingerprint, collect(self.folder))
            return self._cached[1]


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = "Lockstep"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        if not self.server.answers_to(self.headers.get("Host", "")):
            self._send(403, "text/plain", b"this server is for this machine only\n", body)
            return
        path = urlsplit(self.path).path
        if path not in ("/", "/data.json"):
            self._send(404, "text/plain", b"there is / and /data.json\n", body)
            return
        try:
            data = self.server.data()
        except (UserError, OSError) as error:
            self._send(503, "text/plain", f"{error}\n".encode(), body)
            return
        if path == "/":
            self._send(200, "text/html", make_page(data, live=True).encode(), body)
        elif self.headers.get("If-None-Match") == f'"{data["fingerprint"]}"':
            self._send(304, "application/json", b"", body)
        else:
            tag = [("ETag", f'"{data["fingerprint"]}"')]
            self._send(200, "application/json", json.dumps({**data, "live": True}).encode(), body, tag)

    def _send(
        self, status: int, kind: str, content: bytes, body: bool, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """A page that asks every few seconds would fill the terminal."""
