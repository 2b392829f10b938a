"""A headless Chromium driven over its DevTools protocol: enough to open a page, run JavaScript and hear complaints."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


def chromium() -> str | None:
    """Return the path of a Chromium or Chrome, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser process with one tab. ``complaints`` holds console errors, uncaught exceptions and log errors;
    ``requests`` every address that was asked for; ``dialogs`` the texts of alerts."""

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900) -> None:
        program = chromium()
        assert program is not None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: list[str] = []
        self._next = 0
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._socket = websocket.create_connection(self._tab(profile), timeout=180, max_size=None)
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
        except BaseException:
            self._process.kill()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *fault: object) -> None:
        try:
            self.send("Browser.close")
            self._socket.close()
        except (OSError, websocket.WebSocketException, TimeoutError):
            pass
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def open(self, page: Path) -> None:
        """Open a local file and wait until it has loaded."""
        self._events.clear()
        self.send("Page.navigate", url=page.resolve().as_uri())
        self._until(lambda: "Page.loadEventFired" in self._events)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression (promises are awaited). Raises AssertionError when it throws."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.1)

    def show(self, *, width: int, height: int = 900, dark: bool = False, scale: float = 1) -> None:
        """Set the size of the window and the preferred colours."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )
        value = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(answer["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._next += 1
        number = self._next
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        self._until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _until(self, done: Any) -> None:
        while not done():
            self._take(json.loads(self._socket.recv()))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, given = message["method"], message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(given["exceptionDetails"])[:800])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(given["args"])[:800])
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(given["message"])
            self._next += 1
            self._socket.send(
                json.dumps({"id": self._next, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}})
            )

    def _tab(self, profile: Path) -> str:
        """The address of the first tab, once the browser has written its port."""
        file = profile / "DevToolsActivePort"
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if file.exists() and (lines := file.read_text().splitlines()):
                with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=90) as answer:
                    tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
                if tabs:
                    return str(tabs[0]["webSocketDebuggerUrl"])
            assert self._process.poll() is None, "the browser ended before it was ready"
            time.sleep(0.1)
        raise AssertionError("the browser did not open its debugging port")
