"""The applications of `examples/` that retrieve, in virtual time."""

import json

import pytest

from kairos import flow
from kairos.core import PLACEMENTS, POLICIES, SECOND
from kairos.engines import load_profile
from kairos.simulate import World
from kairos.simulate.flow_answers import answer, prompt_of, tokens_of
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import functions_runner
from kairos.simulate.processors import NOTHING_AROUND, TEOLA, ProcessorTimes, Surroundings
from kairos.workflows import FlowLimits, Generation, LoadedFlow
from tests.support.flow_tables import RETRIEVAL, example, rows
from tests.support.workflows.declared import MessageTemplate
from tests.support.workflows.runs import compile_plan

TIMED = Surroundings(processors=TEOLA, function_us=SECOND)


def run(loaded, table, around, passes=None):
    """The client that carried it out, to its end."""
    clients = []

    def client(clock, feed):
        clients.append(
            FlowClient(
                compile_plan(loaded.declaration, passes),
                FlowLimits(capacity=16),
                iter(table),
                functions_runner(loaded.functions),
                clock,
                feed,
                around=around,
            )
        )
        return clients[0]

    engine = {"engine": load_profile("a40-llama3-8b")}
    world = World((), engine, POLICIES["kairos"], PLACEMENTS["kairos"], clients=client)
    clients[0].generated = world.fleet.progress
    world.run()
    return clients[0]


@pytest.mark.parametrize("name", RETRIEVAL)
def test_an_application_answers_every_row_the_same_however_long_things_take(name):
    table = rows(6)
    at_once, timed = (run(example(name), table, each) for each in (NOTHING_AROUND, TIMED))

    assert timed.failed == {}
    assert len(timed.written) == 6
    assert timed.written == at_once.written
    assert all(row["answer"] for row in timed.written.values())


def test_processors_take_their_time_and_it_is_seen_when():
    f = flow.Flow("retrieval")
    row = f.input("row")
    vectors = f.embed("vectors", row["texts"])
    f.output("found", f.search(
        "found", f.embed("asked", row["question"]),
        collection=f.ingest("kept", row["texts"], vectors), top_k=1,
    ))  # fmt: skip
    times = {
        "embed": ProcessorTimes(fixed_us=100, item_us=10),
        "search": ProcessorTimes(fixed_us=7),
    }
    loaded = LoadedFlow(f.declaration, f.functions)
    ran = run(loaded, [{"texts": ["a", "b"], "question": "c"}], Surroundings(processors=times))

    spans = {e.node: (e.begun_us, e.ended_us, e.kind) for e in ran.timeline.activities}
    assert spans == {
        "asked": (0, 130, "embed"),
        "kept_stages.0.vectors_part": (0, 130, "embed"),
        "kept_stages.0.kept_part": (130, 130, "ingest"),
        "found": (130, 137, "search"),
    }


def test_items_of_a_list_go_on_while_the_rest_is_generated():
    ran = run(example("advanced_rag.yaml"), rows(1), NOTHING_AROUND)

    [expanded] = [each for each in ran.timeline.activities if each.node == "expanded"]
    first = min(e.begun_us for e in ran.timeline.activities if e.operator == "vector")
    assert expanded.begun_us < first < expanded.ended_us


def length(of):
    return len(of)


def test_a_function_takes_its_time():
    f = flow.Flow("function")
    row = f.input("row")
    f.output("n", f.call("n", length, purity="pure", of=row["text"]))
    loaded = LoadedFlow(f.declaration, f.functions)
    ran = run(loaded, [{"text": "abc"}], Surroundings(function_us=250))

    assert [each.us for each in ran.timeline.activities] == [250]


def generation(**of):
    return Generation((MessageTemplate("user", "x"),), **of)


def test_an_answer_has_as_many_tokens_as_it_must_have():
    names = [f"{number:08x}" for number in range(50)]
    assert {tokens_of(answer(generation(max_tokens=40), name, 1.0)) for name in names} == {40}
    found = {tokens_of(answer(generation(max_tokens=40), name)) for name in names}
    assert min(found) < 20 < max(found) <= 40


def test_texts_of_a_made_up_list_differ_and_are_as_long_as_they_must_be():
    schema = {"type": "array", "items": {"type": "string", "minLength": 30}, "minItems": 3}
    said = answer(generation(schema=schema), "s" * 32)

    items = json.loads(said)
    assert len(set(items)) == 3
    assert {len(each) for each in items} == {30}


def test_a_chat_that_goes_on_within_its_last_message_begins_like_the_whole_one():
    system, passage = "You answer. " * 20, "What the passage says. " * 20
    whole = prompt_of(
        {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": passage + "And then?"},
            ]
        }
    )
    begun = prompt_of(
        {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": passage},
            ],
            "continue_final_message": True,
        }
    )
    assert whole[: len(begun) - 1] == begun[:-1]
    assert len(begun) * 16 >= (len(system) + len(passage)) / 4


def filled_s(words, item_us, passes, **batch):
    """Return the seconds in which passages of a row are put into a collection that stays."""
    f = flow.Flow("filling")
    row = f.input("row")
    chunks = f.chunk("chunks", row["text"], size=1, overlap=0)
    f.output("n", f.ingest("kept", chunks, f.embed("v", chunks), collection="docs", **batch))
    text = " ".join(f"w{n}" for n in range(words))
    times = {**TEOLA, "ingest": ProcessorTimes(fixed_us=10_000, item_us=item_us, batch=10_000)}
    ran = run(
        LoadedFlow(f.declaration, f.functions),
        [{"text": text}],
        Surroundings(processors=times),
        passes,
    )
    assert ran.written[0, 0]["n"] == {"collection": "docs", "count": words}
    return max(each.ended_us for each in ran.timeline.activities) / SECOND


@pytest.mark.parametrize("item_us", [1_000, 5_000, 25_000])
@pytest.mark.parametrize("words", [48, 480, 4_800])
def test_a_collection_that_stays_is_filled_while_passages_are_embedded(words, item_us):
    whole = filled_s(words, item_us, flow.Passes(stages=False))
    usual = filled_s(words, item_us, flow.Passes())
    small = filled_s(words, item_us, flow.Passes(), batch=16)
    embedding, putting = -(-words // 16) * 0.05 + words * 0.025, words * item_us / SECOND
    for staged, stage in ((usual, min(words, 64)), (small, 16)):
        assert staged <= whole
        # The slower one of both, one stage, and 10 ms for each time at each.
        one = -(-stage // 16) * 0.05 + stage * (0.025 + item_us / SECOND)
        assert staged <= max(embedding, putting) + one + 0.02 * (words // stage + 1)


def words(text):
    return text.split()


@pytest.mark.parametrize("parsed", [False, True])
def test_what_a_model_writes_is_embedded_while_it_writes(parsed):
    texts = {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 6}
    schema = {"type": "object", "properties": {"q": texts}, "required": ["q"]}
    f = flow.Flow("expanding")
    row = f.input("row")
    if parsed:
        more = f.llm("more", "ask {{ row.q }}", row=row, max_tokens=60)
        asked = f.call("parts", words, purity="pure", partial=True, text=more)
    else:
        asked = f.llm("more", "ask {{ row.q }}", row=row, schema=schema, max_tokens=200)["q"]
    f.output("v", f.embed("v", asked))
    loaded, ended_s, early = LoadedFlow(f.declaration, f.functions), {}, {}
    for is_on in (False, True):
        ran = run(loaded, [{"q": "?"}], TIMED, flow.Passes(decoding=is_on))
        [more] = [each for each in ran.timeline.activities if each.node == "more"]
        embeds = [each for each in ran.timeline.activities if each.kind == "embed"]
        early[is_on] = sum(each.begun_us < more.ended_us for each in embeds), len(embeds)
        ended_s[is_on] = max(each.ended_us for each in embeds) / SECOND
        assert len(ran.written[0, 0]["v"]) >= 6
    assert early[False] == (0, 1)
    begun, of = early[True]
    assert begun >= of - 1
    assert ended_s[True] < ended_s[False]
