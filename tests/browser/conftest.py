"""One headless browser for all tests of a file, where there is one."""

import pytest
from browser.lab import launch
from needs import missing
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="module")
def browser():
    try:
        playwright = sync_playwright().start()
        started = launch(playwright)
    except Exception as error:  # a library is missing, for example
        reason = (str(error).splitlines() or [repr(error)])[0]
        missing("browser", f"no browser for this test (on Debian: apt-get install chromium libatomic1): {reason}")
    yield started
    started.close()
    playwright.stop()
