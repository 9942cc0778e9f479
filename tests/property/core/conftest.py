import os

import pytest

from kairos.core.dispatcher.native import KERNEL


@pytest.fixture
def kernel():
    """The compiled arithmetic of `forecast.c`. In CI it must be there."""
    if KERNEL is None:
        assert not os.environ.get("CI"), "forecast.c is not compiled, and here it must be"
        pytest.skip("forecast.c is not compiled: `python scripts/compile_native.py`")
    return KERNEL
