import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kairos.cli.commands import COMMANDS, load
from kairos.cli.main import app
from kairos.core import MAX_WAITING, PLACEMENTS, POLICIES, SECOND, core_names
from kairos.core.scheduler.queue import MAX_WAIT_US
from kairos.core.workflow_tracker import IDLE_US

# What no command needs to print its help.
HEAVY = {
    *("aiohttp", "confluent_kafka", "cryptography", "fastapi", "jinja2", "joserfc", "lancedb"),
    *("matplotlib", "numpy", "prometheus_client", "pyarrow", "pydantic", "scipy", "sqlite3"),
    *("starlette", "uvicorn", "yaml"),
}


def first_paragraph(text):
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def imported_by(*arguments):
    """Names of the packages that the command has imported when it ends."""
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['kairos', *{arguments!r}]\n"
        "try:\n"
        "    runpy.run_module('kairos.cli.main', run_name='__main__')\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code, ended.code\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(ran.stderr.split())


def test_help_lists_every_command_by_its_first_line():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for name in COMMANDS:
        command = load(name)
        assert first_paragraph(command.help) in shown
        assert command.name == name


def test_a_command_that_is_not_there_is_told_from_one_that_is():
    shown = CliRunner().invoke(app, ["serv"])
    assert shown.exit_code == 2
    assert "Did you mean 'serve'?" in shown.output


def test_a_command_imports_no_other():
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from kairos.cli.main import app\n"
        "assert 'exit status' in CliRunner().invoke(app, ['health', '--help']).output\n"
        "print(*(name for name in sys.modules if name.startswith('kairos.cli.')))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(ran.stdout.split()) == {
        f"kairos.cli.{name}" for name in ("commands", "main", "top", "options")
    }


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join
)
def test_what_only_prints_imports_nothing_heavy(arguments):
    assert imported_by(*arguments) & HEAVY == set()


def test_options_take_plain_values_without_pydantic(tmp_path):
    """`keys list` has a path, `keys create` text and a number."""
    file = str(tmp_path / "keys.toml")
    assert "pydantic" not in imported_by("keys", "create", file, "--tenant", "a")
    assert "pydantic" not in imported_by("keys", "list", file)


def test_plain_values_are_what_typer_makes_of_them(tmp_path):
    taken = []
    alone = typer.Typer()

    @alone.command()
    def command(
        words: list[str],
        text: str = "",
        number: int = 0,
        path: Path | None = None,
        several: list[str] | None = None,
    ) -> None:
        taken.append((words, text, number, path, several))

    lines = (
        ["a"],
        ["a", "b", "--text", "t", "--number", "12", "--path", str(tmp_path), "--several", "x"],
        ["a", "--number=-3", "--path", "", "--several", "x", "--several", ""],
    )
    full, plain = typer.main.get_command(alone), typer.main.get_command(alone)
    load_plain_values(plain)
    for line in lines:
        full.main(list(line), standalone_mode=False)
        plain.main(list(line), standalone_mode=False)
        assert taken[-1] == taken[-2]
        assert [*map(type, taken[-1])] == [*map(type, taken[-2])]


def load_plain_values(command):
    from kairos.cli.commands import take_plain_values

    take_plain_values(command)


def test_a_value_that_is_wrong_is_refused_as_by_typer():
    shown = CliRunner().invoke(app, ["serve", "--port", "x"])
    assert shown.exit_code == 2
    assert "valid integer" in shown.output


def test_names_and_limits_of_the_core_are_its_own():
    assert set(core_names.POLICY_NAMES) == set(POLICIES)
    assert set(core_names.PLACEMENT_NAMES) == set(PLACEMENTS)
    assert core_names.MAX_WAITING == MAX_WAITING
    assert core_names.MAX_WAIT_S == MAX_WAIT_US // SECOND
    assert core_names.IDLE_S == IDLE_US // SECOND


def test_the_help_of_kairos_has_every_command_under_a_heading():
    assert len(COMMANDS) > 20
    assert all(load(name).rich_help_panel == panel for name, (panel, *_) in COMMANDS.items())


def test_who_asks_for_the_version_gets_nothing_else():
    only = CliRunner().invoke(app, ["--version"])
    assert only.output.startswith("kairos ")
    with_a_command = CliRunner().invoke(app, ["--version", "keys", "list", "/nowhere"])
    assert (with_a_command.exit_code, with_a_command.output) == (0, only.output)
