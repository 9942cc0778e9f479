"""H9: in the midst of a flow a conversation goes from one backend to another, and comes back."""

import asyncio
import json

import pytest
from openai import AsyncOpenAI

from kairos.engines.llama import ALIAS
from tests.e2e.cli.flow_runs import Runs, answering
from tests.support.cli.command import start_engines
from tests.support.vllm import READY_S

# Halo's mixed processors: the draft and the last word on one engine, the check on another.
FLOW = """
flow: handover
defaults: {max_tokens: 24, on_cut: keep}
operators:
  row: {kind: input}
  draft:
    kind: llm
    model: HERE
    messages:
      - {role: system, content: "RULES"}
      - {role: user, content: "Draft: {{ row.text }}"}
  check:
    kind: llm
    model: THERE
    messages:
      - {role: system, content: "RULES"}
      - {role: user, content: "Draft: {{ row.text }}"}
      - {role: assistant, content: "{{ draft }}"}
      - {role: user, content: "What is wrong with it?"}
  last:
    kind: llm
    model: HERE
    messages:
      - {role: system, content: "RULES"}
      - {role: user, content: "Draft: {{ row.text }}"}
      - {role: assistant, content: "{{ draft }}"}
      - {role: user, content: "What is wrong with it?"}
      - {role: assistant, content: "{{ check }}"}
      - {role: user, content: "Say it anew."}
outputs: {draft: draft, check: check, last: last}
"""
RULES = " ".join(f"Rule {n}: say thing{n} in few words." for n in range(20))


def flow(here, there):
    return FLOW.replace("THERE", there).replace("HERE", here).replace("RULES", RULES)


def conversation(text, *said):
    """The messages by which the next answer is asked, after these."""
    questions = [f"Draft: {text}", "What is wrong with it?", "Say it anew."]
    messages = [{"role": "system", "content": RULES}]
    for question, answer in zip(questions, said, strict=False):
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": questions[len(said)]}]


def asked(engine):
    """What it was asked for an answer that somebody reads: what is computed ahead has one token."""
    bodies = [json.loads(call.body) for call in engine.calls]
    return [(each["model"], each["messages"]) for each in bodies if each["max_tokens"] > 1]


async def test_h9_a_conversation_goes_to_another_backend_and_back_word_by_word(engines, tmp_path):
    here, there = await engines(), await engines()
    here.models, there.models = ["vllm-model"], ["llama-model"]
    # What a template, JSON or a tokenizer might change.
    spoken = '  {{ row }} <|im_end|>\n\\n "quoted" \u00e9\u2028\U0001f980 \t'
    answering(here, lambda body: f"{len(body['messages'])} here {spoken}")
    answering(there, lambda body: f"{len(body['messages'])} there {spoken}")
    runs = Runs(tmp_path, here)

    record = await runs.run(
        flow("vllm-model", "llama-model"), [{"text": "otters"}], engines=(here.url, there.url)
    )

    assert (record.state, record.has_failures) == ("done", False)
    draft, check, last = f"2 here {spoken}", f"4 there {spoken}", f"6 here {spoken}"
    assert runs.out() == [{"row": 0, "draft": draft, "check": check, "last": last}]
    assert asked(here) == [
        ("vllm-model", conversation("otters")),
        ("vllm-model", conversation("otters", draft, check)),
    ]
    assert asked(there) == [("llama-model", conversation("otters", draft))]


async def test_a_run_begins_once_every_engine_has_said_which_models_it_serves(engines, tmp_path):
    here, there = await engines(), await engines()
    here.models, there.models = ["vllm-model"], ["llama-model"]
    tell = there.probe

    async def slowly(request):
        await asyncio.sleep(0.5)
        return await tell(request)

    there.probe = slowly
    answering(here), answering(there)

    record = await Runs(tmp_path, here).run(
        flow("vllm-model", "llama-model"), [{"text": "otters"}], engines=(here.url, there.url)
    )

    assert (record.state, record.has_failures) == ("done", False)


@pytest.mark.vllm
@pytest.mark.timeout(READY_S + 120)
async def test_h9_from_vllm_to_llama_cpp_and_back_as_if_each_were_asked_by_hand(
    tmp_path, engine, vllm
):
    runs, texts = Runs(tmp_path, engine), ["otters", "bees", "banks"]
    async with (
        start_engines("llama", 1) as (llama,),
        AsyncOpenAI(base_url=f"{vllm[0]}/v1", api_key="none") as here,
        AsyncOpenAI(base_url=f"{llama}/v1", api_key="none") as there,
    ):
        [served] = (await here.models.list()).data

        async def ask(client, model, messages):
            answer = await client.chat.completions.create(
                model=model, messages=messages, max_tokens=24, temperature=0
            )
            return answer.choices[0].message.content, answer.usage

        record = await runs.run(
            flow(served.id, ALIAS),
            [{"text": text} for text in texts],
            engines=(vllm[0], llama),
            concurrency=1,
        )
        assert (record.state, record.has_failures) == ("done", False)
        tokens = 0
        for row, text in zip(runs.out(), texts, strict=True):
            draft, first = await ask(here, served.id, conversation(text))
            _, second = await ask(there, ALIAS, conversation(text, row["draft"]))
            said = conversation(text, row["draft"], row["check"])
            last, third = await ask(here, served.id, said)
            assert (row["draft"], row["last"]) == (draft, last)
            # llama.cpp's answers depend on what its cache holds, the tokens of a prompt do not.
            tokens += sum(usage.prompt_tokens for usage in (first, second, third))
    figures = record.figures
    print(f"{figures['cached_tokens']} of {figures['prompt_tokens']} tokens were in caches")
    assert figures["prompt_tokens"] == tokens
    # What vLLM held of the conversation before it went away.
    assert figures["cached_tokens"] > 0
