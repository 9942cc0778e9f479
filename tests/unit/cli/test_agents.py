"""`kairos agents`: what it says to whoever asks for the impossible; nothing is started."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kairos.agent import Application
from kairos.agents import process as agents_process
from kairos.cli import agents, running
from kairos.cli.main import app
from kairos.core import SetupError

BUS = ("--bus", "kafka://127.0.0.1:1")
GOOD = """
from kairos.agent import Application
app = Application("{name}", entry="only")
@app.agent("only")
async def only(task):
    await task.finish({{}})
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory of modules, and none of them imported before or after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def says(*arguments, **environ) -> str:
    """Why the command does not start."""
    result = CliRunner().invoke(app, ["agents", *arguments], env={"KAIROS_BUS": None, **environ})
    assert isinstance(result.exception, SetupError), result.output
    return str(result.exception)


class TestModules:
    def test_one_that_is_not_there(self):
        assert says("run", "nowhere.at_all", *BUS) == (
            "there is no module 'nowhere.at_all' in this directory or among what is installed"
        )

    def test_a_file_instead_of_a_module(self):
        assert "name the module, as in `import agents.qa`" in says("run", "agents/qa.py", *BUS)

    def test_one_that_needs_what_is_not_there(self, here):
        Path("lacking.py").write_text("import not_installed_at_all")
        assert says("run", "lacking", *BUS) == (
            "'lacking' needs the module 'not_installed_at_all', which is not here"
        )

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("def", "SyntaxError"),
            ("1 / 0", "ZeroDivisionError: division by zero"),
            ("from kairos.agent import nothing", "ImportError: cannot import name 'nothing'"),
        ],
    )
    def test_one_that_breaks(self, here, source, said):
        Path("broken.py").write_text(source)
        assert f"'broken' cannot be imported: {said}" in says("run", "broken", *BUS)

    @pytest.mark.parametrize("source", ["", "app = 1", "application = None"])
    def test_one_without_an_application(self, here, source):
        Path("plain.py").write_text(source)
        expected = "'plain' has no `app` that is a kairos.agent.Application"
        assert says("run", "plain", *BUS) == expected
        assert says("submit", "plain", "{}", *BUS) == expected

    def test_two_of_one_name(self, here):
        for module in ("one", "two"):
            Path(f"{module}.py").write_text(GOOD.format(name="same"))
        assert says("run", "one", "two", *BUS) == (
            "two of the modules call their application 'same'"
        )

    def test_a_module_of_this_directory_is_found_before_any_other(self, here):
        Path("json5_like.py").write_text(GOOD.format(name="mine"))
        agents._import_from_here()
        loaded = agents_process.load_application("json5_like")
        assert (loaded.name, list(loaded.agents)) == ("mine", ["only"])


class TestAgents:
    def test_named_ones_are_chosen_and_without_names_all(self):
        one, two = Application("one", entry="a"), Application("two", entry="a")
        for each in (one, two):
            for name in ("a", "b"):
                each.agent(name)(print)
        assert agents_process.choose_inboxes([one, two], ["two.b"]) == ("kairos.agents.two.b",)
        assert len(agents_process.choose_inboxes([one, two], [])) == 4

    def test_one_that_does_not_exist(self, here):
        Path("good.py").write_text(GOOD.format(name="mine"))
        assert says("run", "good", "--agent", "mine.other", *BUS) == (
            "there is no agent 'mine.other'; there are: mine.only"
        )


class TestBus:
    @pytest.mark.parametrize("given", [(), ("--bus", "memory")])
    @pytest.mark.parametrize("command", [("run", "agents.qa"), ("submit", "agents.qa", "{}")])
    def test_in_memory_processes_do_not_meet(self, command, given):
        assert re.match(
            r"processes meet on Kafka: name it by --bus kafka://", says(*command, *given)
        )

    def test_an_address_that_is_none(self):
        assert "write memory or kafka://" in says("run", "agents.qa", "--bus", "http://x:1")
        assert "write memory or kafka://" in says("run", "agents.qa", KAIROS_BUS="x")

    def test_an_llm_is_reached_by_http_or_over_the_bus_not_both(self):
        for option in (("--url", "http://x"), ("--api-key-env", "KEY")):
            said = says("run", "agents.qa", "--llm", "bus", *option, *BUS)
            assert "leave out --url and --api-key-env" in said

    def test_a_key_that_is_not_set(self):
        said = says("run", "agents.qa", "--api-key-env", "NO_SUCH_KEY", *BUS)
        assert said == "the variable NO_SUCH_KEY is not set"


class TestTasks:
    @pytest.mark.parametrize(
        ("task", "said"),
        [
            ("{", "the task is not a JSON object: Input data was truncated"),
            ("[1]", "the task is not a JSON object: Expected `object`, got `array`"),
            ("@no/such.json", "no/such.json: No such file or directory"),
            ("@.", ".: Is a directory"),
            ("@lines.jsonl", "lines.jsonl, task 2, is not a JSON object"),
            ("@deep.json", "deep.json is not a JSON object"),
            ("@empty.json", "empty.json is not a JSON object"),
        ],
    )
    def test_what_is_no_task_is_said_to_be_none(self, here, task, said):
        Path("lines.jsonl").write_text('{"a": 1}\n\n[2]\n')
        Path("deep.json").write_text('{"a":' * 100_000)
        Path("empty.json").write_text("")
        assert said in says("submit", "agents.qa", task, *BUS)

    def test_one_id_for_several_tasks(self, here):
        Path("lines.jsonl").write_text("{}\n{}\n")
        said = says("submit", "agents.qa", "@lines.jsonl", "--msg-id", "w", *BUS)
        assert said == "--msg-id names one workflow, and these are 2 tasks"

    def test_an_object_over_several_lines_is_one_task_and_lines_are_one_each(self, here):
        Path("one.json").write_text('{\n  "text": "a"\n}\n')
        Path("two.jsonl").write_text('{"text": "a"}\r\n{"text": "b"}\n')
        assert agents._values("@one.json") == ({"text": "a"},)
        assert agents._values("@two.jsonl") == ({"text": "a"}, {"text": "b"})
        assert agents._values('{"text": "c"}') == ({"text": "c"},)

    def test_too_much_at_once_is_refused(self, here, monkeypatch):
        monkeypatch.setattr(agents, "INPUT_BYTES", 10)
        Path("big.json").write_text('{"a": "0123456789"}')
        assert says("submit", "agents.qa", "@big.json", *BUS) == (
            "big.json exceeds 10 bytes: submit it in parts"
        )


@pytest.mark.parametrize("until", [lambda main: main, agents._until_told])
def test_of_what_several_tasks_met_the_first_is_said(until):
    async def fail():
        raise SetupError("the topic is gone")

    async def wanted():
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(asyncio.sleep(10))
            inner.create_task(fail())

    with pytest.raises(SetupError, match="the topic is gone"):
        running.run(until(wanted()))
