"""Headless Chromium, driven by the protocol of WebDriver, and checks of the pages that it shows."""
from __future__ import annotations

import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from fixture import SOURCE, WITHIN

DRIVER = shutil.which("chromedriver")
AXE = SOURCE / ".scalelab" / "browser" / "axe_playwright_python" / "axe.min.js"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name of a reference to an element
# For each picture of the page: texts that overlap another text, a mark or a line, and texts that leave the picture. Boxes may
# touch.
TEXTS = """
    const found = new Set(), near = 0.5;
    const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > near &&
                           Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > near;
    // Returns the points of a shape's line, one for each unit of its length. Each shape is computed once, because many texts may be
    // near it.
    const lines = new Map();
    const pointsOf = (shape) => {
      if (!lines.has(shape)) {
        const matrix = shape.getScreenCTM(), length = shape.getTotalLength(), points = [];
        for (let at = 0; ; ++at) {
          points.push(shape.getPointAtLength(Math.min(at, length)).matrixTransform(matrix));
          if (at >= length) break;
        }
        lines.set(shape, points);
      }
      return lines.get(shape);
    };
    // Returns whether the line of a shape goes through a box.
    const crosses = (shape, box) => pointsOf(shape).some(({x, y}) =>
      x > box.left + near && x < box.right - near && y > box.top + near && y < box.bottom - near);
    for (const picture of document.querySelectorAll('svg')) {
      const frame = picture.getBoundingClientRect();
      const texts = [...picture.querySelectorAll('text')].map((text) => ({text: text.textContent, box: text.getBoundingClientRect()}))
        .filter(({box}) => box.width > 0);
      const shapes = texts.length === 0 ? [] : [...picture.querySelectorAll('line, path, polyline, polygon, rect, circle')]
        .map((shape) => ({shape, box: shape.getBoundingClientRect()}))
        .filter(({shape, box}) => !(shape.getAttribute('width') === '100%' && shape.getAttribute('height') === '100%') &&
          (box.width < frame.width - 1 || box.height < frame.height - 1))  // without the background
        .map((one) => ({...one, filled: one.shape.localName !== 'line' && getComputedStyle(one.shape).fill !== 'none'}));
      texts.forEach(({text, box}, i) => {
        if (box.left < frame.left - near || box.right > frame.right + near ||
            box.top < frame.top - near || box.bottom > frame.bottom + near)
          found.add(`'${text}' leaves the picture`);
        for (const other of texts.slice(i + 1))
          if (meet(box, other.box)) found.add(`'${text}' overlaps '${other.text}'`);
        for (const {shape, box: around, filled} of shapes) {
          const far = around.left > box.right || around.right < box.left || around.top > box.bottom || around.bottom < box.top;
          if (!far && ((filled && meet(box, around)) || crosses(shape, box)))
            found.add(`'${text}' lies on ${shape.outerHTML.slice(0, 200)}`);
        }
      });
    }
    return [...found];"""
KEYS = {"Enter": "\ue007", "Tab": "\ue004", "Down": "\ue015", "Right": "\ue014", "Up": "\ue013", "Left": "\ue012"}


def available() -> str:
    """Returns the name of a missing program, or "" if all programs exist."""
    missing = [] if DRIVER else ["chromedriver"]
    if not AXE.exists():
        missing.append(str(AXE))
    return f"{' and '.join(missing)} missing; deploy/setup --tests installs it" if missing else ""


class Browser:
    """A browser with one window. Records the console messages and the addresses of all requests."""

    def __init__(self) -> None:
        self._dir = tempfile.mkdtemp(prefix="scalelab-browser-")
        port = 0
        for _ in range(5):  # chromedriver ends if another process has the port that it chose for IPv4 on IPv6
            self._driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                            cwd=self._dir)
            for line in self._driver.stdout:
                if "started successfully on port" in line:
                    port = int(line.rsplit(" ", 1)[1].rstrip(".\n"))
                    break
            if port:
                break
            self._driver.stdout.close()
            self._driver.wait()
        self._base = f"http://127.0.0.1:{port}"
        # Chromium's sandbox needs a user namespace, which root in a container may not have.
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-device-scale-factor=1",
                     "--hide-scrollbars", f"--user-data-dir={self._dir}/profile"]
        options = {"args": arguments, "perfLoggingPrefs": {"enableNetwork": True, "enablePage": False}}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
        self._base += f"/session/{session['sessionId']}"
        self.requests: list[str] = []

    def close(self) -> None:
        try:
            self._ask("DELETE", "", None)
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._driver.stdout.close()
            shutil.rmtree(self._dir, ignore_errors=True)

    def _ask(self, method: str, path: str, body):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=WITHIN) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:2000]}") from None

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments):
        """Executes the body of a function in the page, and returns its result."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str, *arguments):
        """Executes an asynchronous script, and returns the value that it passes to its last argument, a function."""
        return self._ask("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def wait_for(self, script: str, *arguments, seconds: float = WITHIN):
        """Executes the script repeatedly until its value is true, and returns this value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(script, *arguments)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not true within {seconds} s: {script} {arguments}\n{self.text()[:3000]}\n{self.console()}")

    def text(self) -> str:
        return self.run("return document.body.innerText")

    def wait_text(self, text: str, seconds: float = WITHIN) -> None:
        self.wait_for("return document.body.innerText.toLowerCase().includes(arguments[0].toLowerCase())", text, seconds=seconds)

    def click(self, selector: str, text: str = "") -> None:
        """Clicks the first visible element of this kind whose text contains `text`."""
        found = self.wait_for("return [...document.querySelectorAll(arguments[0])]"
                              ".find((e) => e.textContent.includes(arguments[1]) && !e.disabled && e.checkVisibility()) ?? null",
                              selector, text)
        self._ask("POST", f"/element/{found[ELEMENT]}/click", {})

    def focus(self, selector: str) -> None:
        self.wait_for("const e = document.querySelector(arguments[0]); e?.focus(); return e !== null && document.activeElement === e",
                      selector)

    def press(self, *names: str) -> None:
        keys = [{"type": kind, "value": KEYS.get(name, name)} for name in names for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def resize(self, width: int, height: int) -> None:
        self._command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, on: bool) -> None:
        self._command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def _command(self, name: str, **parameters):
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def screenshot(self, name: str) -> None:
        """Writes the whole page into the directory $SCALELAB_SHOTS, if that is set."""
        directory = os.environ.get("SCALELAB_SHOTS")
        if directory:
            data = self._command("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            pathlib.Path(directory, f"{name}.png").write_bytes(base64.b64decode(data))

    def console(self) -> list[str]:
        """Returns the messages of the console since the last call."""
        return [f"{entry['level']} {entry['message']}" for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def requested(self) -> list[str]:
        """Returns the addresses of all requests of pages so far."""
        for entry in self._ask("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith("chrome:"):  # the window before the first page has such an address
                    self.requests.append(url)
        return self.requests

    def violations(self) -> list[str]:
        """Returns the errors that the accessibility checker axe finds."""
        if not self.run("return 'axe' in window"):
            self.run(AXE.read_text(encoding="utf-8"))
        return self.run_async("""
            const tell = arguments[0];
            const nodes = (v) => v.nodes.map((n) => `${n.target} ${n.any.map((a) => a.message)} ${n.html.slice(0, 200)}`).join(' | ');
            axe.run(document).then((r) => tell(r.violations.map((v) => `${v.id}: ${v.help}: ${nodes(v)}`)), (e) => tell([String(e)]));""")

    def faults_of_texts(self) -> list[str]:
        """Returns the faults of texts of SVG pictures that TEXTS finds."""
        return self.run(TEXTS)

    def on_new_page(self, script: str) -> None:
        """Executes the script in each page that is loaded from now on, before the scripts of the page."""
        self._command("Page.addScriptToEvaluateOnNewDocument", source=script)

    def overflow(self) -> list[str]:
        """Returns elements that are wider than the window, unless they scroll."""
        return self.run("""
            const wide = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= wide) return [];
            return [...document.body.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > wide + 1)
              .slice(0, 5).map((e) => e.outerHTML.slice(0, 200));""")
