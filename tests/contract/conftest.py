import pytest

from tests.support.kafka_mock import MockCluster


@pytest.fixture(scope="session")
def mock_kafka():
    """librdkafka's mock cluster, one for all tests: name topics and groups apart."""
    return MockCluster()
