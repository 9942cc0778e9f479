"""`kairos bus`, without a Kafka."""

from typer.testing import CliRunner

from kairos.cli.main import app
from kairos.core import SetupError


def test_a_bus_is_asked_for():
    error = CliRunner().invoke(app, ["bus", "check"], env={"KAIROS_BUS": None}).exception
    assert isinstance(error, SetupError)
    assert "--bus kafka://" in str(error)
