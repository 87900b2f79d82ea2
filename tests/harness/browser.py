"""Controls Chromium without a window: opens a page, evaluates JavaScript, moves the mouse, takes pictures.

The protocol is that of the browser's developer tools (https://chromedevtools.github.io/devtools-protocol/):
JSON messages, each with a NUL at its end, on file descriptors 3 and 4. So neither a port nor a driver is
needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_PATIENCE_S = 90.0
"""Time limit (seconds), far longer than a page takes on a busy machine."""
_OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-default-browser-check",
    "--no-first-run",
    "--force-color-profile=srgb",
)


def chromium() -> str:
    """Return the browser's program; fail the test if there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.fail(
            "this test needs Chromium: as root, `apt-get install chromium`, or scripts/test as root, which does that"
        )
    return found


class Browser:
    """A running browser. Made by `open_browser`."""

    def __init__(self, to: int, from_: int) -> None:
        self._to, self._from = to, from_
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; return the answer. Events that arrive meanwhile go to `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def await_event(self, method: str) -> None:
        """Wait until the event `method` has happened since the last `events.clear()`."""
        deadline = time.monotonic() + _PATIENCE_S
        while not any(each.get("method") == method for each in self.events):
            self.events.append(self._receive(deadline, method))

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser did not answer {what} within {_PATIENCE_S:.0f} s"
            content = os.read(self._from, 2**20)
            assert content, f"the browser ended before it answered {what}"
            self._rest += content
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def page(
        self,
        path: Path,
        *,
        width: int = 1200,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        first: str = "",
    ) -> Page:
        """Open a file in a new page, and wait until it is loaded.

        first: JavaScript that runs before the page's own scripts.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.call("Page.addScriptToEvaluateOnNewDocument", source=first)
        self.events.clear()
        page.call("Page.navigate", url=path.as_uri())
        self.await_event("Page.loadEventFired")
        return page


class Page:
    """An open page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression. If it is a promise, wait for its value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def await_true(self, expression: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)

    def move_mouse(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse button at one place and release it at another."""
        self.move_mouse(*start)
        self.call(
            "Input.dispatchMouseEvent",
            type="mousePressed",
            x=start[0],
            y=start[1],
            button="left",
            clickCount=1,
        )
        for part in (0.3, 0.6, 1.0):
            x, y = (a + (b - a) * part for a, b in zip(start, end, strict=True))
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.call(
            "Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], button="left", clickCount=1
        )

    def press(self, key: str) -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path, *, full: bool = False, quality: int | None = None) -> None:
        """Write the visible part of the page (full: the whole page) as PNG, or as JPEG of a `quality`."""
        options: dict[str, Any] = {"captureBeyondViewport": full}
        if quality is not None:
            options |= {"format": "jpeg", "quality": quality}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))

    def print_to(self, path: Path) -> None:
        """Write the page as a PDF on A4, with the margins of a browser's dialogue (1 cm)."""
        size: dict[str, Any] = {"paperWidth": 8.27, "paperHeight": 11.69}
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", **size)["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors that the page has written to its console or thrown since it was opened."""
        self.ask("0")
        found = []
        for event in self._browser.events:
            parameters = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(json.dumps(parameters["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                    found.append(json.dumps(parameters["args"]))
                case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                    found.append(parameters["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that the page has requested, its own address first."""
        self.ask("0")
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser whose profile is in `folder`, and end it when the context is left."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # The descriptors are above 3 and 4, to which the shell below moves them. Only that shell inherits them.
    theirs = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (theirs_in, theirs_out)]
    os.close(theirs_in)
    os.close(theirs_out)
    options = [*_OPTIONS, f"--user-data-dir={folder}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", chromium(), *options],
        pass_fds=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
        start_new_session=True,
    )
    for each in theirs:
        os.close(each)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        # The browser ends when the other end of its pipe is closed.
        os.close(ours_out)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        os.close(ours_in)
