"""How long operators take alone, about."""

from kairos import flow
from kairos.engines import load_profile
from kairos.workflows.compile.costs.latency import TYPICAL_LATENCIES, measured_latencies


def test_an_operator_takes_its_call_and_its_answer_and_a_body_what_is_in_it():
    f = flow.Flow("f")
    row = f.input("row")
    answer = f.llm("answer", "{{ q }}", q=row["q"], max_tokens=10)
    all_of = f.map("all", row["items"], lambda item: f.llm("each", "{{ i }}", i=item, max_tokens=5))
    f.output("x", f.format("x", "{{ a }}{{ b }}", a=answer, b=all_of))
    by_name = {e.name: e for e in f.declaration.operators}
    us = TYPICAL_LATENCIES.operator_us
    assert (
        us(by_name["answer"]) == TYPICAL_LATENCIES.call_us + 10 * TYPICAL_LATENCIES.decode_token_us
    )
    assert us(by_name["all"]) == TYPICAL_LATENCIES.call_us + 5 * TYPICAL_LATENCIES.decode_token_us
    assert us(by_name["row"]) == us(by_name["x"]) == 0


def test_an_engine_s_own_figures_and_learnt_answers_take_their_place():
    engine = load_profile("a40-llama3-8b")
    costs = measured_latencies(engine, {"answer": 3.0})
    assert costs.prefill_token_us == engine.step.prefill_token_us
    f = flow.Flow("f")
    row = f.input("row")
    f.output("a", f.llm("answer", "{{ q }}", q=row["q"], max_tokens=500))
    found = costs.operator_us(f.declaration.operators[1])
    assert found == costs.call_us + 3 * costs.decode_token_us


def test_a_function_takes_what_was_learnt_of_it():
    functions = flow.Functions()
    f = flow.Flow("f", functions=functions)
    row = f.input("row")
    f.output("a", f.call("look_up", functions.pure(str), text=row["q"]))
    (operator,) = [each for each in f.declaration.operators if each.name == "look_up"]
    assert TYPICAL_LATENCIES.operator_us(operator) == TYPICAL_LATENCIES.function_us
    costs = measured_latencies(load_profile("a40-llama3-8b"), {}, {"look_up": 2e6})
    assert costs.operator_us(operator) == 2e6
