import sys

import pytest

from kairos.core import SetupError
from kairos.workflows import load_flow
from kairos.workflows.run.flow_file import table_path

YAML = """
flow: f
operators:
  row: {kind: input}
  said: {kind: llm, prompt: "{{ row.text }}"}
outputs: {said: said}
"""
PYTHON = """
from kairos.flow import Flow
from neighbour import PROMPT

f = made = Flow("f")
row = f.input("row")
f.output("said", f.llm("said", PROMPT, row=row))
f.output("length", f.call("length", len, purity="pure", obj=row["text"]))
"""
FUNCTIONS = "from kairos.flow import Functions\nfunctions = Functions()\nfunctions.pure(len)\n"


@pytest.fixture(autouse=True)
def _path_is_restored(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)


@pytest.fixture
def put(tmp_path):
    def put(name, content):
        (tmp_path / name).write_text(content)
        return tmp_path / name

    return put


def test_yaml_is_read_with_the_functions_of_a_python_file(put):
    loaded = load_flow(put("f.yaml", YAML), put("functions.py", FUNCTIONS))

    assert loaded.declaration.name == "f"
    assert list(loaded.functions) == ["len"]
    assert list(load_flow(put("f.yml", YAML)).functions) == []


def test_a_python_file_may_import_its_neighbours_and_brings_its_functions(put):
    put("neighbour.py", 'PROMPT = "{{ row.text }}"')
    loaded = load_flow(put("f.py", PYTHON))

    assert [each.column for each in loaded.declaration.outputs] == ["said", "length"]
    assert list(loaded.functions) == ["len"]


def test_the_same_file_as_it_is_now_is_read_each_time(put):
    for name in ("one", "other"):
        path = put("f.py", f"from kairos.flow import Flow\nf = Flow('{name}')")
        path.touch()
        assert load_flow(path).declaration.name == name


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("f.yaml", None, "cannot be read: No such file"),
        ("f.py", None, "there is no such file"),
        ("f.yaml", "flow: f\noperators: {a: {kind: lllm}}\noutputs: {}", r"f.yaml:2: .*'llm'"),
        ("f.yaml", "flow: [", r"f.yaml:2: it is not YAML"),
        ("f.py", "import nowhere_to_be_found", "cannot be run: ModuleNotFoundError"),
        ("f.py", "1 +", "cannot be run: SyntaxError"),
        ("f.py", "", "should hold a kairos.flow.Flow and holds none"),
        ("f.py", "from kairos.flow import Flow as F\na = F('a'); b = F('b')", "holds 2 of them"),
        (
            "f.toml",
            "",
            r"a flow is a .yaml file, a .py file that declares one, or an OpenAI batch \(.jsonl\)",
        ),
    ],
)
def test_what_is_no_flow_is_refused_in_words(put, tmp_path, name, content, says):
    if content is not None:
        put(name, content)

    with pytest.raises(SetupError, match=says):
        load_flow(tmp_path / name)


def test_files_that_no_flow_is_in_are_refused(put, tmp_path):
    (tmp_path / "f.yaml").write_bytes(b"# \xff")
    with pytest.raises(SetupError, match="is not UTF-8"):
        load_flow(tmp_path / "f.yaml")

    with pytest.raises(SetupError, match="larger than 4 MiB"):
        load_flow(put("f.yaml", "#" * (5 << 20)))


def test_functions_are_those_of_one_file(put):
    with pytest.raises(SetupError, match=r"should hold a kairos\.flow\.Functions"):
        load_flow(put("f.yaml", YAML), put("functions.py", ""))
    with pytest.raises(SetupError, match="brings its own functions: leave out --functions"):
        load_flow(put("f.py", ""), put("functions.py", FUNCTIONS))


def test_a_batch_is_its_own_table_and_any_other_flow_needs_one(put, tmp_path):
    batch, table, made = tmp_path / "batch.jsonl", tmp_path / "rows.csv", tmp_path / "f.yaml"

    assert table_path(batch, None) == table_path(batch, batch) == batch
    assert table_path(made, table) == table
    with pytest.raises(SetupError, match="whose lines are the rows: leave out --inputs"):
        table_path(batch, table)
    with pytest.raises(SetupError, match="name the table to run over: --inputs FILE"):
        table_path(made, None)


def test_a_batch_brings_its_own_function(put):
    line = (
        '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": '
        '{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}}'
    )
    assert list(load_flow(put("batch.jsonl", line)).functions) == ["openai_response"]
    with pytest.raises(SetupError, match="leave out --functions"):
        load_flow(put("batch.jsonl", line), put("functions.py", FUNCTIONS))
