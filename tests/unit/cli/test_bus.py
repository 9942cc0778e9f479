"""`kairos bus`, without a Kafka."""

import pytest
from typer.testing import CliRunner

from kairos.cli.main import app
from kairos.core import SetupError


def invoke(*arguments):
    return CliRunner().invoke(app, ["bus", *arguments], env={"KAIROS_BUS": None})


@pytest.mark.parametrize("command", [["check"], ["skip", "kairos.requests/0@1", "g"]])
def test_a_bus_is_asked_for(command):
    error = invoke(*command).exception
    assert isinstance(error, SetupError)
    assert "--bus kafka://" in str(error)


@pytest.mark.parametrize(
    "place", ["", "x", "kairos.requests", "kairos.requests/0", "a/b@c", "t/0@-1"]
)
def test_a_place_that_is_none_is_refused_before_anybody_is_asked(place):
    error = invoke("skip", "--bus", "kafka://127.0.0.1:1", "--", place, "g").exception
    assert isinstance(error, SetupError)
    assert "TOPIC/PARTITION@OFFSET" in str(error)
