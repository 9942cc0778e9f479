"""A plan's calls as work for devices."""

import pytest

from kairos import flow
from kairos.core import CallShape, SetupError
from kairos.engines import load_profile
from kairos.workflows.compile.call_shapes import COLUMN_TOKENS
from kairos.workflows.compile.costs.fluid import makespan_us
from kairos.workflows.compile.flow_profile import CostFactors, learn_profile
from kairos.workflows.compile.flow_work import shared_contexts, work_of_flow
from kairos.workflows.compile.prediction import predict_flow

PROFILES = {"small": load_profile("a40-llama3-8b"), "large": load_profile("a40-llama2-13b")}
ROWS = [{"text": "word " * 80 + str(n)} for n in range(50)]


def review():
    f = flow.Flow("review", max_tokens=40)
    doc = f.input("doc")
    draft = f.llm("draft", "{{ doc.text }}", doc=doc, model="small")
    framed = f.format("framed", "<{{ draft }}>", draft=draft)
    better = f.loop(
        "refine",
        framed,
        lambda state: f.llm("better", "{{ s }}", s=state, model="large"),
        max_rounds=2,
    )
    f.output("out", f.llm("last", "{{ b }} {{ doc.text }}", b=better, doc=doc, model="small"))
    return f.compile()


def works(plan, profiles=PROFILES, devices=2):
    return work_of_flow(plan, predict_flow(plan, ROWS), profiles, devices)


def test_work_is_of_operators_that_call_models_each_after_those_whose_answers_it_needs():
    found = {each.name: each for each in works(review())}
    assert {name: (each.model, each.needs, each.calls) for name, each in found.items()} == {
        "draft": ("small", (), 50),
        "better": ("large", ("draft",), 100),
        "last": ("small", ("draft", "better"), 50),
    }


def test_operators_side_by_side_in_a_body_wait_for_what_is_before_it_and_not_for_each_other():
    f = flow.Flow("both", max_tokens=40)
    doc = f.input("doc")
    parts = f.llm("parts", "{{ doc.text }}", doc=doc, model="small")

    def body(item):
        pro = f.llm("pro", "for {{ i }}", i=item, model="small")
        con = f.llm("con", "against {{ i }}", i=item, model="large")
        return f.llm("sum", "{{ p }} {{ c }}", p=pro, c=con, model="small")

    f.output("out", f.loop("each", parts, body, max_rounds=2))
    needs = {each.name: each.needs for each in works(f.compile())}
    assert needs == {
        "parts": (),
        "pro": ("parts",),
        "con": ("parts",),
        "sum": ("parts", "pro", "con"),
    }


def test_it_takes_as_long_as_the_profile_says_on_one_device_and_shared():
    draft = works(review())[0]
    predicted = predict_flow(review(), ROWS).by_operator["draft"]
    shape = CallShape(prompt=predicted.prompt_tokens / 50, answer=40)
    one, two = (makespan_us(PROFILES["small"], shape, calls) for calls in (50, 25))
    assert draft.run_us == (one, two)
    assert draft.last_us == makespan_us(PROFILES["small"], shape, 1)


def test_a_model_of_which_nothing_is_known_is_refused():
    with pytest.raises(SetupError, match="the model 'large', and the host file knows small"):
        works(review(), {"small": PROFILES["small"]})
    f = flow.Flow("f", max_tokens=4)
    f.output("out", f.llm("ask", "{{ doc.text }}", doc=f.input("doc")))
    with pytest.raises(SetupError, match="calls that name no model"):
        works(f.compile())
    assert works(f.compile(), {"small": PROFILES["small"]})[0].model == "small"


def test_what_prompts_of_a_row_begin_with_together_is_reused_on_the_same_device():
    f = flow.Flow("contexts", max_tokens=8)
    row = f.input("row")
    role, text = "You judge. " * 30, "{{ row.text }}\n"
    first = f.llm("first", text + "Who?", system=role, row=row)
    f.output("a", f.llm("second", text + "So: {{ v }}", system=role, row=row, v=first))
    f.output("b", f.llm("other", "{{ row.title }}" + text, system=role, row=row))
    f.output("c", f.llm("alone", "{{ row.text }} {{ row.title }}", row=row))
    found = shared_contexts(f.compile().declaration.operators)
    assert {*found} == {"first", "second"}
    assert found["first"][0] == found["second"][0]
    whole = COLUMN_TOKENS + len(role) / 4
    assert found["first"][1] == pytest.approx(COLUMN_TOKENS / whole, abs=0.03)
    # In a batch that an engine's memory holds, not in one that it does not.
    plan, llama = f.compile(), load_profile("a40-llama3-8b")
    for count, is_reused in ((4, True), (40_000, False)):
        counted = predict_flow(
            plan, [{"text": f"{n} " * 400, "title": "t"} for n in range(count // 100 or 4)]
        )
        for each in counted.by_operator.values():
            each.calls, each.prompt_tokens = count, count * 600
        works = {each.name: each for each in work_of_flow(plan, counted, {"m": llama}, 2)}
        assert (works["second"].reused_us > 0) == is_reused
        assert works["alone"].reused_us == works["other"].reused_us == 0
        assert works["second"].reused_us < works["second"].run_us[0]


def test_factors_that_are_given_are_those_of_the_cost():
    plan, predicted = review(), predict_flow(review(), ROWS)
    plain = {each.name: each for each in work_of_flow(plan, predicted, PROFILES, 4)}
    for sharing in (0.0, 0.5, 0.9):
        factors = CostFactors(sharing=sharing)
        for each in work_of_flow(plan, predicted, PROFILES, 4, factors):
            for parts, us in enumerate(each.run_us, 1):
                before = plain[each.name].run_us[parts - 1]
                assert us == pytest.approx(before * parts ** (1 - sharing))

    f = flow.Flow("contexts", max_tokens=8)
    row = f.input("row")
    first = f.llm("first", "{{ row.text }}\nWho?", row=row)
    f.output("a", f.llm("second", "{{ row.text }}\nSo: {{ v }}", row=row, v=first))
    asked = f.compile(), predict_flow(f.compile(), ROWS[:4]), {"m": PROFILES["small"]}, 2
    whole, half, none = (
        [each.reused_us for each in work_of_flow(*asked, CostFactors(reuse=reuse))]
        for reuse in (1.0, 0.5, 0.0)
    )
    assert half == pytest.approx([us / 2 for us in whole])
    assert whole[0] > 0
    assert none == [0.0, 0.0]


def test_what_was_learnt_of_operators_is_what_they_take():
    plan, predicted = review(), predict_flow(review(), ROWS)
    seen = {"draft": [(90, 12)] * 5, "better": [(20, 30)] * 5, "last": [(100, 7)] * 5}
    times = {"draft": [1] * 10, "better": [1] * 5, "last": [1] * 10}  # half of the rows: 1 round
    known = learn_profile(plan, 10, seen, times).operators
    found = {each.name: each for each in work_of_flow(plan, predicted, PROFILES, 2, known=known)}
    assert {name: each.calls for name, each in found.items()} == {
        "draft": 50,
        "better": 25,
        "last": 50,
    }
    shape = CallShape(prompt=90, answer=12)
    assert found["draft"].run_us[0] == makespan_us(PROFILES["small"], shape, 50)
