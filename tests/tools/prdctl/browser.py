"""A headless Chromium that a test or a tool speaks to over a pipe (the DevTools protocol). Standard library only."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
DEADLINE_S = 90

# Key: (code, virtual key code, text).
KEYS = {
    "Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "Space": ("Space", 32, " "),
    "End": ("End", 35, ""), "Home": ("Home", 36, ""), "ArrowLeft": ("ArrowLeft", 37, ""), "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""), "ArrowDown": ("ArrowDown", 40, ""),
}
SHIFT = 8
# The browser reads its pipe from descriptor 3, and writes to 4.
LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"


def _pipe():
    """Its ends are above 3 and 4."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 100) for end in ends]
    for end in ends:
        os.close(end)
    return high


class Browser:
    """One page of a browser of its own. Use in a with statement."""

    def __init__(self, width=1500, height=1300):
        self._home = tempfile.mkdtemp(prefix="prd-browser-")
        to_browser, self._to = _pipe()
        self._from, from_browser = _pipe()
        self._log = open(os.path.join(self._home, "log"), "w+")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={self._home}/profile",
                   f"--window-size={width},{height}", "about:blank"]
        self._process = subprocess.Popen([sys.executable, "-c", LAUNCH, str(to_browser), str(from_browser), PROGRAM, *options],
                                         pass_fds=(to_browser, from_browser), stdout=self._log, stderr=self._log, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self._bytes, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._to)  # it ends with its pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._log.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE_S
        while True:
            answer = self._message(end, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _message(self, end, method):
        while b"\0" not in self._bytes:
            left = end - time.monotonic()
            got = os.read(self._from, 1 << 16) if select.select([self._from], [], [], max(0, left))[0] else b""
            assert got, f"{method}: the browser does not answer: {self._said()}"
            self._bytes += got
        message, _, self._bytes = self._bytes.partition(b"\0")
        return json.loads(message)

    def _said(self):
        self._log.flush()
        self._log.seek(0)
        return self._log.read()[-1500:]

    def open(self, url):
        """Until its scripts have run."""
        self.call("Page.navigate", url=url)
        self.wait_for(f'location.href === {json.dumps(url)} && document.readyState === "complete"', f"{url} loaded")

    def evaluate(self, expression):
        """What the expression, or the promise that it is, gives; as JSON."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, (expression, done["exceptionDetails"])
        return done["result"].get("value")

    def wait_for(self, expression, what=None):
        """Its first value that counts as true."""
        end = time.monotonic() + DEADLINE_S
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"not seen: {what or expression}"
            time.sleep(0.05)
        return value

    def press(self, *keys, shift=False):
        for key in keys:
            code, number, text = KEYS.get(key) or (f"Key{key.upper()}", ord(key.upper()), key)
            both = {"key": " " if key == "Space" else key, "code": code, "windowsVirtualKeyCode": number, "modifiers": SHIFT * shift}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **both)
            self.call("Input.dispatchKeyEvent", type="keyUp", **both)

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
