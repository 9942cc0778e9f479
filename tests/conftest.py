import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    """The directory of the real data sets. In CI it must be there; elsewhere a test may skip."""
    path = Path(os.environ.get("KAIROS_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir() and "CI" not in os.environ:
        pytest.skip(f"no real data in {path}; set KAIROS_DATA")
    return path
