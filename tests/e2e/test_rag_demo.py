"""`make rag-demo`, with its real models."""

import pytest
from rich.console import Console

from examples import rag_demo
from experiments.modules_real import archive, engines, run_pair

DOCUMENTS = "\n\n".join(
    each * 12
    for each in (
        "The X1 is a lamp. It has a remote control with two batteries. ",
        "The Y2 is a kettle. It holds a litre and a half of water, and boils it soon. ",
        "The Z3 is a clock. It wakes you at seven with the song of a bird. ",
    )
)


def spans(answered):
    """Of each operator, from its first call's beginning to its last one's end; its parts are it."""
    found = {}
    for each in answered.activities:
        name = each.operator.removesuffix("_part")
        begun, ended = found.get(name, (each.begun_us, each.ended_us))
        found[name] = min(begun, each.begun_us), max(ended, each.ended_us)
    return found


@pytest.mark.real
async def test_the_demo_answers_as_the_chain_does_and_modules_overlap():
    console = Console(record=True, width=120)

    chain, ours = await rag_demo.demo("How much water does the kettle hold?", DOCUMENTS, console)

    assert ours.values == chain.values
    assert "kettle" in ours.values["passage"]
    assert ours.values["answer"].strip()
    one_by_one, overlapped = spans(chain), spans(ours)
    assert one_by_one["vectors"][1] <= one_by_one["expanded"][0]
    assert overlapped["expanded"][0] < overlapped["vectors"][1]
    said = console.export_text()
    assert "the same answer" in said
    assert "█" in said


@pytest.mark.real
async def test_a_pair_on_real_models_searches_lancedb_and_says_the_same():
    console, asked = Console(record=True, width=120), (DOCUMENTS, "What wakes you?")
    async with archive([DOCUMENTS], console) as kept_in, engines("llama") as fresh:
        row = await run_pair(1, asked, "llama", fresh, kept_in, console)

    assert "the archive has " in console.export_text()
    assert row.is_same
    assert row.chain_s > 0 < row.kairos_s
