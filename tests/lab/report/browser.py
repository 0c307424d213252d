"""A headless Chromium controlled through its DevTools pipe: no port, no driver program, only the standard library."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads commands from file descriptor 3 and answers on 4.
LAUNCH = "import os, sys; os.dup2({commands}, 3); os.dup2({answers}, 4); os.execv(sys.argv[1], sys.argv[1:])"


def find_chromium() -> str | None:
    """The path of the browser; None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. `send` sends a DevTools command and returns its answer; events that arrive meanwhile are kept."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = commands, answers
        self.events: list[dict[str, Any]] = []
        self.unread = b""
        self.number = 0
        self.tab: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.tab = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, *, timeout: float = 60.0, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        command: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.tab is not None:
            command["sessionId"] = self.tab
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next(time.monotonic() + timeout, method)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message.get("result", {})
            self.events.append(message)

    def wait_for(self, event: str, timeout: float = 60.0) -> None:
        until = time.monotonic() + timeout
        while not any(one.get("method") == event for one in self.events):
            self.events.append(self._next(until, event))

    def _next(self, until: float, awaited: str) -> dict[str, Any]:
        while b"\0" not in self.unread:
            if not select.select([self.answers], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"the browser did not answer in time: {awaited}")
            if not (read := os.read(self.answers, 1 << 20)):
                raise RuntimeError("the browser has closed its pipe")
            self.unread += read
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Show a file in a window of this size, in light or dark mode."""
        mobile = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if mobile else 1, "mobile": mobile}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def hover(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text: dict[str, Any] = {"text": "\r"} if key == "Enter" else {}
        about: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def console_messages(self) -> list[str]:
        """Errors, warnings and uncaught exceptions in the console since the page was opened."""
        self.run("0")  # everything sent before has arrived when this is answered
        found = []
        for event in self.events:
            about = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(about["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(str(about["entry"]))
            elif event.get("method") == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(str(about["args"]))
        return found

    def requests(self) -> list[str]:
        """The URLs that the page requested since it was opened."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [about["request"]["url"] for about in sent]

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole, timeout=60.0, **self._clip(whole))
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self, path: Path) -> Path:
        printed = self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True, timeout=60.0)
        path.write_bytes(base64.b64decode(printed["data"]))
        return path


@contextlib.contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A browser with an empty profile; both are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        to_browser, from_browser = os.pipe(), os.pipe()
        # Numbers above 4, or one copy would close the other.
        commands, answers = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser[0], from_browser[1]))
        os.close(to_browser[0])
        os.close(from_browser[1])
        launch = [sys.executable, "-c", LAUNCH.format(commands=commands, answers=answers)]
        process = subprocess.Popen(
            [*launch, path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        try:
            browser = Browser(to_browser[1], from_browser[0])
            yield browser
            browser.tab = None
            browser.send("Browser.close")
        finally:
            os.close(to_browser[1])
            os.close(from_browser[0])
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
