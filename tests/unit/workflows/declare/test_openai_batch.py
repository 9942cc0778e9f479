"""An OpenAI batch as a flow, and what of it cannot be one."""

import json

import pytest
from openai.types.chat import ChatCompletion

from kairos import flow
from kairos.core import InvalidFile
from kairos.workflows import Generation
from kairos.workflows.compile.operators import Constant, MessageTemplate, Reference
from kairos.workflows.declare import openai_batch
from kairos.workflows.declare.openai_batch import openai_response

SYSTEM = "You are terse. {{ no template }}"


def line(number, *, system=SYSTEM, **body):
    messages = [{"role": "user", "content": f"question {number}"}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "tiny", "messages": messages, "temperature": 0} | body,
    }


@pytest.fixture
def put(tmp_path):
    def put(*lines):
        path = tmp_path / "batch.jsonl"
        path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
        return path

    return put


def llm(made):
    made.compile()
    (found,) = (e for e in made.declaration.operators if isinstance(e.params, Generation))
    return found


def test_lines_of_one_kind_are_rows_of_one_operator(put):
    asked = {"max_completion_tokens": 9, "top_p": 0.5, "seed": 3, "stop": "END", "n": 1}
    operator = llm(flow.from_openai_batch(put(line(1, **asked), "", line(2, **asked))))

    assert operator.params == Generation(
        messages=(
            MessageTemplate("system", "{{ message_0 }}"),
            MessageTemplate("user", "{{ message_1 }}"),
        ),
        model="tiny",
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        seed=3,
        stop=("END",),
        on_cut="keep",
    )


def test_what_all_lines_say_is_in_the_flow_and_the_rest_comes_from_the_rows(put):
    alike = llm(flow.from_openai_batch(put(line(1), line(2)))).inputs
    differs = llm(flow.from_openai_batch(put(line(1), line(2, system="Other.")))).inputs

    assert alike["message_0"] == Constant(SYSTEM)
    assert differs["message_0"] == Reference("row", ("body", "messages", 0, "content"))
    assert alike["message_1"] == Reference("row", ("body", "messages", 1, "content"))


def test_one_line_is_a_batch_too(put):
    assert flow.from_openai_batch(put(line(1))).compile().columns == ("custom_id",)


def test_a_long_text_that_all_lines_say_comes_from_the_rows(put):
    lines = [line(number, system="long " * 300_000) for number in (1, 2)]
    assert isinstance(llm(flow.from_openai_batch(put(*lines))).inputs["message_0"], Reference)


def test_a_line_that_says_no_temperature_has_the_one_of_openai(put):
    without = line(1)
    del without["body"]["temperature"]
    assert llm(flow.from_openai_batch(put(without))).params.temperature == 1


def test_a_json_schema_is_that_of_the_operator(put):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert llm(flow.from_openai_batch(put(line(1, response_format=wanted)))).params.schema == schema
    text = {"type": "text"}
    assert llm(flow.from_openai_batch(put(line(1, response_format=text)))).params.schema is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (line(2, tools=[]), "`tools`"),
        (line(2, logprobs=True), "`logprobs`"),
        (line(2, n=2), "$.n"),
        (line(2, response_format={"type": "json_object"}), "json_object"),
        (line(2, messages=[{"role": "tool", "content": "x"}]), "tool"),
        (line(2, messages=[{"role": "user", "content": [{"type": "text"}]}]), "expected `str`"),
        (line(2, messages=[]), "messages is empty"),
        (line(2, model="other"), "it differs from line 1 in model,"),
        (line(2, max_tokens=5, seed=1), "in max_tokens, seed,"),
        (line(2, system=None), "in roles of messages,"),
        (line(2) | {"url": "/v1/embeddings"}, "url must be"),
        (line(2) | {"custom_id": "line-1"}, "custom_id is that of an earlier line"),
        (line(2, stream=True), "stream"),
        ("{", "not a request"),
    ],
)
def test_what_a_flow_cannot_say_is_refused_with_its_line(put, wrong, says):
    path = put(line(1), "", wrong)
    with pytest.raises(InvalidFile) as raised:
        flow.from_openai_batch(path)
    assert str(raised.value).startswith(f"{path}:3: ")
    assert says.lower() in str(raised.value).lower()


def test_lines_of_another_kind_are_refused_with_what_to_do(put):
    with pytest.raises(InvalidFile, match=r"a file of its own, or send the file to /v1/batches"):
        flow.from_openai_batch(put(line(1), line(2, model="other")))
    with pytest.raises(InvalidFile, match=r"leave it out, or send the file to /v1/batches"):
        flow.from_openai_batch(put(line(1, tools=[])))


def test_files_are_bounded_as_batches_are(put, monkeypatch, tmp_path):
    path = put(line(1), line(2))
    monkeypatch.setattr(openai_batch, "MAX_BATCH_LINES", 1)
    with pytest.raises(InvalidFile, match="more than 1 lines: split the file"):
        flow.from_openai_batch(path)
    monkeypatch.setattr(openai_batch, "MAX_BATCH_BYTES", 10)
    with pytest.raises(InvalidFile, match="a batch 10 at most: split it"):
        flow.from_openai_batch(path)
    with pytest.raises(InvalidFile, match="cannot be read: No such file"):
        flow.from_openai_batch(tmp_path / "none.jsonl")
    with pytest.raises(InvalidFile, match="has no lines"):
        flow.from_openai_batch(put())


def test_a_response_is_read_by_openais_own_types_and_claims_nothing_that_is_not_known():
    body = ChatCompletion.construct(**openai_response("a", "tiny", {"b": 1})["body"])

    assert body.choices[0].message.content == '{"b":1}'
    assert body.choices[0].finish_reason is None
    assert body.usage is None
