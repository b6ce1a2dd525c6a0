"""Fixtures that several test files share."""

import os

import hypothesis
import pytest

from tests.lab_page import CHROMIUM_FLAGS, LabPage, LabServer, find_chromium

# Hypothesis fails an example that takes over 200 ms, which is the machine's affair.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = find_chromium()
    if path is None:
        reason = "no Chromium on this machine: install it, or set BROWSER_PATH to one"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return path


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory):
    """One JupyterLab for all browser tests of this process."""
    server = LabServer(tmp_path_factory.mktemp("lab"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def browser_context(chromium_path):
    """One browser with one cache: JupyterLab's scripts are read once, not per page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=chromium_path, args=CHROMIUM_FLAGS
        )
        yield chromium.new_context(viewport={"width": 1200, "height": 1600})
        chromium.close()


@pytest.fixture
def lab_page(browser_context, lab_server):
    """A fresh page on an empty workspace, whose notebooks get kernels of their own."""
    page = browser_context.new_page()
    page.set_default_timeout(180_000)  # two busy cores are slow, and that is no failure
    yield LabPage(lab_server, page)
    page.close()
    lab_server.end_kernels()
