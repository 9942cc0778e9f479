"""Every command line in `deploy/` is one that the programs understand."""

import re
import shlex

import pytest
import typer.main

from tests.deploy.files import DEPLOY, OURS, compose, containers
from tests.support.cli.command import app
from tests.support.simulate.standin import read_arguments

STANDIN = ["python", "-m", "kairos.simulate.standin.server"]
COMPOSE = [service for service in compose()["services"].values() if OURS in service["image"]]
LINES = {
    *(tuple(each["command"]) for each in COMPOSE if "entrypoint" not in each),
    *(tuple(container["args"]) for _, _, container in containers()),
}
README = (DEPLOY / "README.md").read_text()
EXAMPLES = {
    tuple(shlex.split(line)[1:])
    for block in re.findall(r"```(?:sh)?\n(.*?)```", README.replace("\\\n", " "), re.DOTALL)
    for line in re.findall(r"\bkairos (?:serve|balance|orchestrate|agents|explain) .*", block)
    for line in ["kairos " + line.split("#")[0].removeprefix("kairos ")]
}


def parse(words):
    """Parse as the command does, and run nothing."""
    command, name, context = typer.main.get_command(app), "kairos", None
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return command
        words = context._protected_args + context.args
        name, command, words = command.resolve_command(context, words)


def test_it_is_found_out_when_an_option_does_not_exist():
    with pytest.raises(Exception, match="--no-such-option"):
        parse(["serve", "--engine=http://gpu1:8000", "--no-such-option"])


@pytest.mark.parametrize("line", sorted(LINES), ids=" ".join)
def test_kairos_understands(line):
    parse(line)


@pytest.mark.parametrize("line", sorted(EXAMPLES), ids=" ".join)
def test_kairos_understands_the_example(line):
    parse(line)


def test_the_stand_in_understands_its_own(monkeypatch):
    lines = [each for each in COMPOSE if "entrypoint" in each]
    assert len(lines) == 2
    for service in lines:
        assert service["entrypoint"] == STANDIN
        monkeypatch.setattr("sys.argv", ["standin", *service["command"]])
        assert read_arguments().port == 8000


def test_there_are_lines_of_every_service():
    said = {line[:2] if line[0] == "agents" else line[:1] for line in LINES}
    assert said == {("serve",), ("balance",), ("orchestrate",), ("agents", "run")}
