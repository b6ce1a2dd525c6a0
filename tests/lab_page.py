"""A real JupyterLab page, driven in the system's Chromium.

`LabServer` starts JupyterLab on a free port, with its own settings, workspaces and
trust database in a temporary folder. Notebooks are copied there before they are opened,
so nothing that a page saves reaches the repository.

In a test, ask for the fixture `lab_page`:

    def test_slider(lab_page):
        lab_page.open(Path("notebooks/00_start_here.ipynb"))
        lab_page.run_all()
        lab_page.page.get_by_role("slider").first.press("ArrowRight")
        lab_page.assert_clean()
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARTEFACTS = ROOT / "tests" / "artefacts"

# Each flag keeps Chromium from talking to its maker, or lets it run as root in a container.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # no other host can be reached, however a page asks for it
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]

# Whole notebooks are laid out, not only the cells in view: screenshots need all of it.
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false"},
}

MOST_SCREENS = 60
# Scroll the open notebook; where it stands then, how high it is, how much one sees of it
SCROLL_TO = """top => {
    const panels = [...document.querySelectorAll(".jp-WindowedPanel-outer, .jp-Notebook")]
        .filter(panel => panel.clientHeight > 0)
        .sort((a, b) => b.scrollHeight - b.clientHeight - a.scrollHeight + a.clientHeight);
    panels[0].scrollTop = top;
    return [panels[0].scrollTop, panels[0].scrollHeight, panels[0].clientHeight];
}"""

# The page's own icon is no part of the course. anywidget gives up a promise that nobody
# needs when a busy page takes over 2 s to set up a widget; the widget comes all the same.
HARMLESS = ("favicon.ico", "[anywidget] Failed to initialize model.")


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome on this machine, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    named = os.environ.get("BROWSER_PATH")
    return named or next(filter(None, map(shutil.which, names)), None)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class LabServer:
    """JupyterLab over a temporary folder. `url` is set while it runs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.notebooks = folder / "root"
        self.url = ""
        self.token = secrets.token_hex(16)
        self._process: subprocess.Popen | None = None

    def _environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"):
            env[f"JUPYTER_{name}"] = str(self.folder / name.lower())
        env["JUPYTERLAB_SETTINGS_DIR"] = str(self.folder / "settings")
        env["JUPYTERLAB_WORKSPACES_DIR"] = str(self.folder / "workspaces")
        return env

    def _write_settings(self) -> None:
        for name, value in SETTINGS.items():
            path = self.folder / "settings" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))

    def start(self, timeout_s: float = 90) -> LabServer:
        self._write_settings()
        self.notebooks.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        command += [
            "--ip=127.0.0.1",
            f"--port={port}",
            f"--ServerApp.root_dir={self.notebooks}",
        ]
        command += [
            f"--IdentityProvider.token={self.token}",
            "--ServerApp.password=",
            "--LabApp.news_url=",
        ]
        command += [
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.expose_app_in_browser=True",
        ]
        with open(self.folder / "server.log", "wb") as log:
            self._process = subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=log
            )
        self._wait(timeout_s)
        return self

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._ask("status")
                return
            except OSError:
                time.sleep(0.2)
        self.stop()
        raise RuntimeError("JupyterLab did not start:\n" + self.log())

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """End the server; it ends its kernels. Wait until it is gone."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def add(self, notebook: Path, *, trusted: bool = True) -> str:
        """Copy a notebook in; its path under the server. `make lab` trusts ours too."""
        target = self.notebooks / notebook.parent.name / notebook.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook, target)
        if trusted:
            command = [sys.executable, "-m", "jupyter", "trust", str(target)]
            subprocess.run(
                command, env=self._environment(), check=True, capture_output=True
            )
        return f"{target.parent.name}/{target.name}"

    def _ask(self, path: str, method: str = "GET") -> bytes:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(
            f"{self.url}/api/{path}", method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.read()

    def end_kernels(self) -> None:
        """Shut every kernel down, so that the next page starts with a fresh one."""
        for session in json.loads(self._ask("sessions")):
            self._ask(f"sessions/{session['id']}", method="DELETE")


class LabPage:
    """One browser page on a `LabServer`. `page` is the playwright page itself.

    console_errors:    what the page's console reported as an error, or threw
    outside_requests:  addresses of other hosts that the page asked for
    """

    def __init__(self, server: LabServer, page):
        self.server = server
        self.page = page
        self.name = ""
        self.console_errors: list[str] = []
        self.outside_requests: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._note_error(str(error)))
        page.on("request", self._on_request)

    def _on_console(self, message) -> None:
        if message.type == "error":
            self._note_error(f"{message.text} ({message.location.get('url', '')})")

    def _note_error(self, text: str) -> None:
        if not any(harmless in text for harmless in HARMLESS):
            self.console_errors.append(text)

    def _on_request(self, request) -> None:
        if not request.url.startswith((self.server.url, "data:", "blob:", "ws:")):
            self.outside_requests.append(request.url)

    def open(self, notebook: Path, *, trusted: bool = True) -> None:
        """Open a copy of the notebook and wait until its cells and its kernel stand."""
        self.name = f"{notebook.parent.name}-{notebook.stem}"
        path = self.server.add(notebook, trusted=trusted)
        self.page.goto(
            f"{self.server.url}/lab/tree/{path}?reset&token={self.server.token}",
            timeout=180_000,
        )
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=180_000)
        self._until_done(
            """async () => {
                const panel = window.jupyterapp.shell.currentWidget;
                await panel.context.ready;
                await panel.sessionContext.ready;
                await panel.sessionContext.session.kernel.info;
            }""",
            timeout_s=180,
        )

    def _until_done(self, script: str, timeout_s: float) -> None:
        """Run an async script in the page. Unlike `page.evaluate`, this has a deadline."""
        self.page.evaluate(
            f"""() => {{
                window.scriptDone = null;
                ({script})().then(() => {{ window.scriptDone = "done"; }},
                                  error => {{ window.scriptDone = String(error); }});
            }}"""
        )
        self.page.wait_for_function("window.scriptDone !== null", timeout=timeout_s * 1000)
        outcome = self.page.evaluate("window.scriptDone")
        if outcome != "done":
            raise RuntimeError(f"{self.name}: the page's script failed: {outcome}")

    def run_all(self, timeout_s: float = 180) -> None:
        """Run > Run All Cells; wait until the last cell is done and widgets are drawn."""
        self._until_done(
            "() => window.jupyterapp.commands.execute('notebook:run-all-cells')", timeout_s
        )
        # JupyterLab's own promise ends at a cell that is meant to raise; others still run
        self.page.wait_for_function(
            """() => {
                const panel = window.jupyterapp.shell.currentWidget;
                const idle = panel.sessionContext.session.kernel.status === "idle";
                if (!idle) window.idleSince = null;
                else window.idleSince ??= performance.now();
                return idle && performance.now() - window.idleSince > 1000;
            }""",
            timeout=timeout_s * 1000,
        )
        self.wait_for_widgets()

    def wait_for_widgets(self, timeout_s: float = 60) -> None:
        """Wait until no output says that its widget is still loading."""
        self.page.wait_for_function(
            """() => ![...document.querySelectorAll(".jp-OutputArea-output")]
                .some(node => node.textContent.trim().startsWith("Loading widget"))""",
            timeout=timeout_s * 1000,
        )
        self.page.wait_for_timeout(500)

    def cells(self) -> list[dict]:
        """The notebook as the page holds it now: its cells with their outputs."""
        model = "window.jupyterapp.shell.currentWidget.content.model.toJSON()"
        return self.page.evaluate(f"() => {model}")["cells"]

    def code_cells(self) -> list[dict]:
        return [c for c in self.cells() if c["cell_type"] == "code"]

    def text(self) -> str:
        """All that a reader sees in the notebook."""
        return self.page.inner_text(".jp-NotebookPanel-notebook")

    def screenshot(self, suffix: str = "") -> list[Path]:
        """Save the whole notebook, screen by screen, under tests/artefacts/; the paths."""
        ARTEFACTS.mkdir(exist_ok=True)
        for old in ARTEFACTS.glob(f"{self.name}{suffix}-[0-9][0-9].png"):
            old.unlink()
        paths, top = [], 0
        while len(paths) < MOST_SCREENS:
            at, height, visible = self.page.evaluate(SCROLL_TO, top)
            self.page.wait_for_timeout(150)
            paths.append(ARTEFACTS / f"{self.name}{suffix}-{len(paths):02}.png")
            self.page.screenshot(path=paths[-1])
            top = at + visible - 60  # a line or two are on both screens
            if at + visible >= height - 1:
                break
        return paths

    def problems(self) -> list[str]:
        """Everything about this page that a reader should never meet."""
        found = [f"console error: {e}" for e in self.console_errors]
        found += [f"asked another host: {url}" for url in self.outside_requests]
        text = self.text()
        for sign in ("Error displaying widget", "model not found", "Loading widget"):
            if sign in text:
                found.append(f"the page says {sign!r}")
        for number, cell in enumerate(self.code_cells(), 1):
            expected = "raises-exception" in cell["metadata"].get("tags", [])
            for output in cell["outputs"]:
                if output["output_type"] == "error" and not expected:
                    found.append(
                        f"code cell {number} raised {output['ename']}: {output['evalue']}"
                    )
        return found

    def assert_clean(self) -> None:
        problems = self.problems()
        assert not problems, f"{self.name}:\n" + "\n".join(problems)
