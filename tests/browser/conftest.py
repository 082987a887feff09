"""One headless browser for all tests of a file, where there is one."""

import os

import pytest
from browser.lab import NoBrowser, launch


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            started = launch(playwright)
            yield started
            started.close()
    except (ImportError, NoBrowser) as error:
        if os.environ.get("WORKSHOP_REQUIRE_BROWSER") == "1":
            raise
        pytest.skip(str(error))
