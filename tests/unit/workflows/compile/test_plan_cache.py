"""Row A6 of the design: plans are made once for a template, whatever a query's settings."""

import msgspec
import pytest

from kairos import flow
from kairos.workflows.compile import plan_cache
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.plan_cache import PlanCache
from kairos.workflows.compile.query_settings import with_settings

LIST = {"type": "array"}
SYSTEM = "You answer in a few words, from passages. " * 10


def retrieval():
    f = flow.Flow("f", max_tokens=20)
    row = f.input("row")
    more = f.llm("more", "{{ q }}", q=row["q"], schema=LIST)
    vectors = f.map("vectors", more, lambda item: f.embed("vector", item), max_items=5)
    chunks = f.chunk("chunks", row["text"])
    index = f.ingest("collection", chunks, f.embed("texts", chunks))
    found = f.search("found", vectors, collection=index)
    prompt = "{{ q }} {{ found }}"
    one = f.llm("one", prompt, system=SYSTEM, q=row["q"], found=found)
    two = f.llm("two", prompt, system=SYSTEM, q=row["q"], found=found)
    f.output("answer", f.llm("answer", "{{ one }} {{ two }}", one=one, two=two))
    return f.declaration


PASSES = flow.Passes()


class Made:
    """A cache, and how often a plan had to be made."""

    def __init__(self, declaration):
        self.cache, self.declaration, self.count = PlanCache(), declaration, 0

    def plan(self, template="t", passes=PASSES, **settings):
        settings = {name.replace("__", "."): value for name, value in settings.items()}
        found = self.cache.find(template, passes, settings)
        made = compile_plan(with_settings(self.declaration, settings), passes)
        if found is None:
            self.count += 1
            self.cache.keep(template, passes, settings, made, 10)
            return made
        # What is found is what would have been made, but for what happens to be equal this time.
        if found.merged == made.merged:
            assert msgspec.structs.asdict(found) == msgspec.structs.asdict(made)
        return found


def test_a6_other_values_of_the_same_settings_find_the_plan():
    made = Made(retrieval())
    for tokens in range(5, 15):
        plan = made.plan(answer__max_tokens=tokens, found__top_k=tokens, vectors__max_items=tokens)
        by_name = {each.name: each.params for each in plan.declaration.operators}
        assert by_name["answer"].max_tokens == tokens
        assert by_name["found"].top_k == tokens
        assert plan.partial[0].most == tokens
    assert made.count == 1
    made.plan()
    made.plan()
    made.plan(answer__max_tokens=5)
    assert made.count == 3


def test_a6_what_a_pass_may_decide_by_counts_by_its_value():
    made = Made(retrieval())
    for _ in range(2):
        for heat in (0.0, 0.5):
            made.plan(answer__temperature=heat)
        for batch in (4, 8):  # of an operator that was taken apart
            made.plan(texts__batch=batch)
        for one, two in ((5, 5), (5, 6)):  # of operators that are one, if these are
            made.plan(one__max_tokens=one, two__max_tokens=two)
    assert made.count == 2 + 2 + 2
    assert made.plan(passes=flow.Passes(cse=False)).merged == {}
    assert made.plan("another").merged == {"two": "one"}


def test_a6_a_value_that_may_not_be_is_refused_as_without_a_plan():
    made = Made(retrieval())
    made.plan(answer__max_tokens=5)
    for value in (0, -1, "many"):
        with pytest.raises(InvalidFlow, match="operator 'answer', max_tokens"):
            made.cache.find("t", PASSES, {"answer.max_tokens": value})


def test_a6_plans_are_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(plan_cache, "MOST_PLANS", 2)
    made = Made(retrieval())
    for template in ("a", "b", "a", "c", "a"):
        made.plan(template)
    assert made.count == 3
    made.plan("b")
    assert made.count == 4
    monkeypatch.setattr(plan_cache, "MOST_BYTES", 15)
    made.plan("d")
    made.plan("a")
    assert made.count == 6
