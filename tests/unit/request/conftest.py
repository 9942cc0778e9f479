import os

import pytest

from kairos.request.native import READING


@pytest.fixture(scope="session")
def reading():
    """The compiled functions of `reading.c`. In CI they must be there."""
    if READING is None:
        assert not os.environ.get("CI"), "reading.c is not compiled, and here it must be"
        pytest.skip("reading.c is not compiled: `python scripts/compile_native.py`")
    return READING
