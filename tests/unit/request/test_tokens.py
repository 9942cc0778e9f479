"""Prompts are estimated from bytes or by a tokenizer, and better with what engines count."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.request import Body, PromptTokens, Tokenizers, tokens
from kairos.request.tokenizer import PromptCount


def run(work):
    return asyncio.run(work)


@pytest.fixture
def prompts():
    return PromptTokens(Tokenizers({}))


def estimate(prompts, expected, *, tenant="t", model="m", app="a", agent="g"):
    body = Body(b"{}", model=model, prompt_tokens=expected)
    assert not prompts.counts(body)
    at_once = prompts.estimate_at_once(body, tenant, app, agent)
    assert run(prompts.estimate(body, tenant, app, agent)) == at_once
    return at_once


def learn(prompts, expected, counted, **who):
    prompts.learn(estimate(prompts, expected, **who), counted)


def test_nothing_is_corrected_while_nothing_is_known(prompts):
    assert estimate(prompts, 100).tokens == 100


def test_after_one_reply_an_agents_prompts_are_corrected_by_it(prompts):
    learn(prompts, 1000, 1500)

    assert estimate(prompts, 1000).tokens == pytest.approx(1500, rel=0.02)
    assert estimate(prompts, 10_000).tokens == pytest.approx(15_000, rel=0.1)


def test_a_short_prompt_says_what_a_template_adds_and_nothing_of_long_ones(prompts):
    learn(prompts, 1, 68)

    assert estimate(prompts, 1).tokens == pytest.approx(68, abs=1)
    assert estimate(prompts, 15_000).tokens == pytest.approx(15_068, rel=0.01)


def test_a_template_and_a_language_are_told_apart(prompts):
    for expected in (10, 100, 1000, 10_000) * 5:
        learn(prompts, expected, 300 + expected * 6 // 10)

    for expected in (20, 2_000, 50_000):
        assert estimate(prompts, expected).tokens == pytest.approx(300 + 0.6 * expected, rel=0.15)


def test_an_agent_that_is_not_known_goes_by_its_model_whosever_that_was(prompts):
    for _ in range(9):
        learn(prompts, 100, 50, agent="one")

    assert estimate(prompts, 100, agent="other").tokens == pytest.approx(50, abs=2)
    assert estimate(prompts, 100, tenant="u", app=None, agent=None).tokens == pytest.approx(
        50, abs=2
    )
    assert estimate(prompts, 100, model="n").tokens == 100


@pytest.mark.parametrize("other", [{"tenant": "u"}, {"app": "b"}, {"agent": "h"}, {"model": "n"}])
def test_each_tenants_apps_agents_and_models_are_learnt_apart(prompts, other):
    for _ in range(3):
        learn(prompts, 100, 200)
        learn(prompts, 100, 50, **other)

    assert estimate(prompts, 100).tokens == pytest.approx(200, rel=0.05)
    assert estimate(prompts, 100, **other).tokens == pytest.approx(50, rel=0.05)


def test_a_long_prompt_says_more_than_a_short_one(prompts):
    learn(prompts, 10_000, 5_000)
    learn(prompts, 10, 40)

    assert estimate(prompts, 10_000).tokens == pytest.approx(5_000, rel=0.05)
    assert estimate(prompts, 1000).tokens == pytest.approx(535, rel=0.05)


def test_what_changes_is_followed(prompts):
    for _ in range(50):
        learn(prompts, 100, 100)
    for _ in range(20):
        learn(prompts, 100, 200)

    assert 180 < estimate(prompts, 100).tokens < 200


@pytest.mark.parametrize("absurd", [0, 1, 3, 10**6, 1 << 47])
def test_a_count_that_cannot_be_is_left_out(prompts, absurd):
    learn(prompts, 100, 120)
    learn(prompts, 100, absurd)

    assert estimate(prompts, 100).tokens == 120


@given(st.lists(st.tuples(st.integers(1, 1 << 23), st.integers(0, 1 << 47)), max_size=20))
def test_whatever_engines_tell_an_estimate_stays_within_reason(told):
    prompts = PromptTokens(Tokenizers({}))
    for expected, counted in told:
        learn(prompts, expected, counted)

    for expected in (1, 1000, 1 << 23):
        assert 1 <= estimate(prompts, expected).tokens <= expected * 16 + 1024 < 10**9


def test_prompts_that_came_as_tokens_are_exact_and_teach_nothing(prompts):
    learn(prompts, 100, 150)
    body = Body(b"{}", model="m", prompt_tokens=100, prompt_is_counted=True)
    counted = run(prompts.estimate(body, "t", "a", "g"))
    prompts.learn(counted, 900)

    assert counted.tokens == 100
    assert estimate(prompts, 100).tokens == 150


def test_what_is_kept_is_bounded_and_what_is_longest_unused_goes_first(monkeypatch):
    monkeypatch.setattr(tokens, "AGENTS", 2)
    monkeypatch.setattr(tokens, "MODELS", 1)
    prompts = PromptTokens(Tokenizers({}))
    learn(prompts, 100, 200, agent="one")
    learn(prompts, 100, 300, agent="two")
    learn(prompts, 100, 200, agent="one")
    learn(prompts, 100, 400, agent="three", model="n")

    assert estimate(prompts, 100, agent="one").tokens == pytest.approx(200, abs=5)
    assert estimate(prompts, 100, agent="three", model="n").tokens == pytest.approx(400, abs=5)
    assert estimate(prompts, 100, agent="two").tokens == 100  # nor is its model known any more


def test_a_tenants_prompts_stay_known_beside_very_many_agents_of_another(monkeypatch):
    monkeypatch.setattr(tokens, "AGENTS", 10)
    prompts = PromptTokens(Tokenizers({}))
    learn(prompts, 100, 150, tenant="honest")
    for n in range(100):
        learn(prompts, 100, 10, tenant="flood", agent=f"a{n}")

    assert 140 < estimate(prompts, 100, tenant="honest").tokens <= 150


def test_a_new_agents_prompts_go_by_its_tenants_before_those_of_all(prompts):
    learn(prompts, 100, 150, tenant="honest", agent="one")
    for n in range(100):
        learn(prompts, 100, 10, tenant="poison", agent=f"a{n}")

    assert 140 < estimate(prompts, 100, tenant="honest", agent="new").tokens <= 150
    assert estimate(prompts, 100, tenant="poison", agent="new").tokens < 20
    assert estimate(prompts, 100, tenant="stranger", agent="new").tokens < 20


class Counting:
    """Stands in for a tokenizer: as many tokens as the body has messages, or no word."""

    def knows(self, model):
        return model == "m"

    async def count(self, model, body):
        tokens = 10 * len(json.loads(body))
        return PromptCount(tokens, tokens) if tokens else None


def test_a_tokenizers_count_lacks_what_the_template_adds():
    prompts = PromptTokens(Counting())

    def counted(messages):
        body = Body(json.dumps(["x"] * messages).encode(), model="m", prompt_tokens=5)
        return run(prompts.estimate(body, "t", "a", "g"))

    assert counted(3).tokens == 30
    for _ in range(30):
        prompts.learn(counted(3), 37)
        assert counted(3).tokens == 37
    assert counted(100).tokens == pytest.approx(1007, abs=2)
    # What a tokenizer did not count is estimated, and was not learnt of.
    assert counted(0).tokens == 5
    prompts.learn(counted(0), 10)
    assert (counted(0).tokens, counted(3).tokens) == (10, 37)
