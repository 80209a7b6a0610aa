"""A real browser for tests: headless Chromium, spoken to through two pipes in the DevTools protocol."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1300,1000",
)
_PATIENCE = 60.0


class Browser:
    """One browser with one page; `events` are all that the page reported."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The protocol is spoken on the descriptors 3 and 4, which the shell sets up whatever numbers they have here.
        redirect = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", redirect, PROGRAM, *_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(_PATIENCE)
            assert answer is not None, f"no answer to {method}"
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Load a page and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.querySelectorAll('canvas').length > 0")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + _PATIENCE
        while not self.run(script):
            assert time.monotonic() < end, f"in vain: {script}"
            time.sleep(0.05)

    def mouse(self, kind: str, x: float, y: float, clicks: int = 0) -> None:
        buttons = {"button": "left", "buttons": 1} if clicks or kind == "mouseMoved" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=clicks, **buttons)

    def requests(self) -> list[str]:
        """The addresses that the page has asked for."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[Any]:
        """Errors and warnings on the page's console, and exceptions."""
        self.run("0")
        kinds = {"Runtime.exceptionThrown": lambda p: True, "Log.entryAdded": lambda p: True}
        kinds["Runtime.consoleAPICalled"] = lambda p: p["type"] in ("error", "warning", "assert")
        return [e["params"] for e in self.events if e.get("method") in kinds and kinds[e["method"]](e["params"])]

    def screenshot(self) -> bytes:
        import base64

        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _next(self, patience: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], patience)[0]:
                return None
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
