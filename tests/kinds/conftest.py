"""A whole Kairos over real sockets, as end to end."""

from tests.e2e.conftest import (  # noqa: F401 - fixtures, and the loop that Kairos runs on
    engine,
    engines,
    kairos,
    pytest_asyncio_loop_factories,
)
