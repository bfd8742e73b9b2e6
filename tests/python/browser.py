"""A headless Chromium that tests drive: over a pipe, as its own tools do, so no library and no port is needed.

Everything that a page asks of the network, every error and every word on its console is kept for the test to look at.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

_DEADLINE_S = 60.0
_CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Where a Chromium is, if there is one."""
    return next((path for name in _CHROMIUM_NAMES if (path := shutil.which(name))), None)


class Browser:
    """One Chromium with one page at a time. Commands raise AssertionError where the page or the browser refuses."""

    def __init__(self, chromium: str, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        command += [f"--user-data-dir={profile}", "--hide-scrollbars", "--no-first-run", "about:blank"]

        # The browser reads descriptor 3 and writes 4; high copies first, for ours may have those very numbers.
        def place_pipes() -> None:
            import fcntl

            high = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (commands, answers)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place_pipes,
            pass_fds=(3, 4),
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self._session = ""
            self.send("Browser.close")
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def open(self, page: Path, *, width: int = 1200, height: int = 1600, **media: str) -> None:
        """Loads a file at a window size; `media` is emulated, `prefers_color_scheme="dark"`."""
        self.complaints.clear()
        self.requests.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + _DEADLINE_S
        # The old page may still answer right after the order to leave it.
        while self.value("[document.readyState, location.href]") != ["complete", page.as_uri()]:
            assert time.monotonic() < deadline, "the page does not finish loading"

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of the first element that matches."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).textContent"))

    def press(self, key: str) -> None:
        """A key goes down and up again where the focus is."""
        codes = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for action in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=action, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def focus(self, selector: str) -> None:
        """Moves the focus."""
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")

    def picture(self, target: Path) -> None:
        """The whole page as PNG."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(shot["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._keep(answer)
        raise AssertionError(f"{method}: the browser does not answer")

    def _messages(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            while b"\0" in self._buffer:
                message, _, self._buffer = self._buffer.partition(b"\0")
                yield json.loads(message)
            if select.select([self._answers], [], [], 1.0)[0]:
                received = os.read(self._answers, 1 << 20)
                if not received:
                    return
                self._buffer += received

    def _keep(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method", ""), event.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(parameters)[:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
