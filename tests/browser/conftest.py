"""One headless browser for all tests of a file, where there is one."""

import pytest
from browser.lab import NoBrowser, check_driver, launch
from needs import missing
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="module")
def browser():
    try:
        check_driver()
        with sync_playwright() as playwright:
            started = launch(playwright)
            yield started
            started.close()
    except NoBrowser as error:
        missing("browser", str(error))
