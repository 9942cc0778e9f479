"""A real browser, for tests of the page: Debian's Chromium without a window, or another one."""

import os
import shutil
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

LIMIT_MS = 60_000  # for what never comes
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def _missing(reason):
    """At home a skip, in CI a failure."""
    (pytest.fail if "CI" in os.environ else pytest.skip)(reason)


def path_of_browser():
    given = os.environ.get("KAIROS_BROWSER")
    found = given or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        _missing("there is no Chromium: scripts/install-browser.sh, or KAIROS_BROWSER=PATH")
    return found


class Visit:
    """A page that is open, and all that it did: what it logged, and where it asked."""

    def __init__(self, page, host):
        self.page, self._host = page, host
        self.errors, self.foreign = [], []
        page.on("console", self._logged)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)

    def _logged(self, message):
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _asked(self, request):
        if urlsplit(request.url).netloc != self._host:
            self.foreign.append(request.url)

    def check(self):
        """Nothing went wrong, and nobody else was asked."""
        assert self.errors == []
        assert self.foreign == []


@asynccontextmanager
async def browsing():
    """Gives `visit(url, **options)`, of which each is a browser of its own; at the end each of them
    has kept the rules."""
    try:
        from playwright.async_api import async_playwright, expect
    except ImportError:
        _missing("the package playwright is not installed: pip install -e .[dev]")
    expect.set_options(timeout=LIMIT_MS)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=path_of_browser(), args=["--no-sandbox"]
        )
        visits = []

        async def visit(url, **options):
            context = await browser.new_context(**options)
            context.set_default_timeout(LIMIT_MS)
            made = Visit(await context.new_page(), urlsplit(url).netloc)
            visits.append(made)
            await made.page.goto(url)
            return made

        yield visit
        for each in visits:
            each.check()
        await browser.close()
