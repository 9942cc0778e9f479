"""`kairos process`: what its options, its file and the environment come to."""

import pytest
from typer.testing import CliRunner

from kairos.cli import process
from kairos.cli.main import app


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What it would have begun with."""
    monkeypatch.delenv("KAIROS_PORT", raising=False)
    found = []

    async def take(settings, load):
        assert load() == settings
        found.append(settings)

    monkeypatch.setattr(process, "_process", take)

    def start(*options, file=""):
        path = tmp_path / "process.toml"
        path.write_text(file)
        done = CliRunner().invoke(app, ["process", "--config", str(path), *options])
        assert done.exit_code == 0, done.output
        return found.pop()

    return start


def test_its_port_is_that_of_the_command_line_the_environment_the_file_or_its_own(
    started, monkeypatch
):
    assert started().port == 8004
    assert started(file="port = 9001").port == 9001
    monkeypatch.setenv("KAIROS_PORT", "9002")
    assert started(file="port = 9001").port == 9002
    assert started("--port", "0", file="port = 9001").port == 0


def test_what_the_command_line_names_stands_in_place_of_what_the_file_does(started):
    file = '[retrieval]\nembedders = ["http://a:1"]\nprocessors = ["http://b:2"]\nhold_mb = 8'
    of_file = started(file=file).retrieval
    assert (of_file.embedders, of_file.processors) == (("http://a:1",), ("http://b:2",))
    told = started("--peer", "http://c:3", file=file).retrieval
    assert (told.embedders, told.processors, told.hold_mb) == (("http://a:1",), ("http://c:3",), 8)
    assert started("--hold-mb", "16", file=file).retrieval.hold_mb == 16
