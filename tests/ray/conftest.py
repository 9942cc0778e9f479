"""A Ray of this machine's own and a PostgreSQL, for all tests."""

import os

import pytest

from tests.support.postgres import postgres_server

CPUS = 4


@pytest.fixture(scope="session")
def ray():
    """Ray, connected. In CI it must be there; elsewhere the tests that need it are skipped."""
    if "CI" not in os.environ:
        pytest.importorskip("ray", reason="Ray is not installed here: sh scripts/install-ray.sh")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONWARNINGS"] = "ignore"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - by default 15: they would wait
    import ray

    ray.init(
        address="local",
        num_cpus=CPUS,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        namespace="kairos",
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def database():
    with postgres_server() as server:
        yield server
