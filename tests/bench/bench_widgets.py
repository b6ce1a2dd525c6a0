"""How fast the live figures are, in a real JupyterLab page.

    python tests/bench/bench_widgets.py

Targets, on 2 cores with nothing else to do: eight figures drawn within 8 s of Run All;
from a slider's input event to plotly's afterplot event a median of 60 ms and a 95th
percentile of 100 ms. The load of the machine is printed beside them.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab_page import CHROMIUM_FLAGS, LabPage, LabServer, find_chromium
from tests.widget_pages import EIGHT, run_to_drawn, write_notebook

PRESSES = 60
GAP_MS = 120
DRAWN_S, MEDIAN_MS, P95_MS = 8.0, 60.0, 100.0

CURVES = [
    "from course import widgets\nfrom course.figures.collectives import time_against_size",
    "widgets.explore(time_against_size, ranks=(2, 200))",
]

PIPELINE = [
    "from course import widgets\nfrom course.figures.pipeline import bubble, two_schedules",
    """\
def pipeline(message_us=0):
    return bubble("1F1B", 16, 64, message_ms=message_us / 1000)

widgets.explore(pipeline, message_us=(0, 200))""",
]
TWO_PIPELINES = [
    PIPELINE[0],
    """\
def pipelines(message_us=0):
    return two_schedules("1F1B", "ZB-V", 16, 64, message_ms=message_us / 1000)

widgets.explore(pipelines, message_us=(0, 200))""",
]

# from the input event, before any listener, to the end of the drawing that it led to
WATCH = """() => {
    const slider = document.querySelector(".rr-widget input[type=range]");
    const plot = slider.closest(".rr-widget").querySelector(".rr-plot");
    window.redrawn = [];
    let pressed = null;
    slider.addEventListener("input", () => { pressed = performance.now(); }, true);
    plot.on("plotly_afterplot", () => {
        if (pressed !== null) window.redrawn.push(performance.now() - pressed);
        pressed = null;
    });
    slider.focus();
}"""


def redraws_ms(page) -> list[float]:
    page.evaluate(WATCH)
    for _ in range(PRESSES):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(GAP_MS)
    page.wait_for_timeout(1000)
    return page.evaluate("window.redrawn")


def measure(browser, server: LabServer, name: str, cells: list[str], figures: int):
    page = browser.new_context(viewport={"width": 1200, "height": 1600}).new_page()
    lab_page = LabPage(server, page)
    lab_page.open(write_notebook(server.folder / "bench" / f"{name}.ipynb", cells))
    drawn_s = run_to_drawn(lab_page, figures, 120_000)
    page.wait_for_timeout(1000)
    redrawn = redraws_ms(page)
    page.context.close()
    server.end_kernels()
    return drawn_s, redrawn


def report(name: str, drawn_s: float, redrawn: list[float]) -> None:
    median = statistics.median(redrawn)
    p95 = statistics.quantiles(redrawn, n=20)[-1]
    print(
        f"{name}, {len(redrawn)} redraws of {PRESSES} presses, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for what, value, most, unit in (
        ("all drawn after Run All", drawn_s, DRAWN_S, "s"),
        ("slider to redraw, median", median, MEDIAN_MS, "ms"),
        ("slider to redraw, p95", p95, P95_MS, "ms"),
    ):
        mark = "" if value <= most else "  MISSED"
        print(f"  {what:26} {value:6.1f} {unit:2} (target {most:g}){mark}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = LabServer(Path(folder)).start()
        options = {"executable_path": find_chromium(), "args": CHROMIUM_FLAGS}
        browser = playwright.chromium.launch(**options)
        try:
            report("eight waves", *measure(browser, server, "eight", EIGHT, 8))
            report("cost curves", *measure(browser, server, "curves", CURVES, 1))
            for name, cells in (("pipeline", PIPELINE), ("two pipelines", TWO_PIPELINES)):
                report(name, *measure(browser, server, name, cells, 1))
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
