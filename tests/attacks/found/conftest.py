"""Fixtures of the end-to-end tests: a whole Kairos, and engines that a test holds by hand."""

from tests.e2e.conftest import (  # noqa: F401
    engine,
    engines,
    kairos,
    pytest_asyncio_loop_factories,
    standin,
)
