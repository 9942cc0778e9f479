"""The flows of `examples/`, and others, over made-up tables that are like those they are for."""

import random
from pathlib import Path

from kairos.workflows import load_flow

# Of n items n² are formatted.
WIDE = """
flow: wide
operators:
  row: {kind: input}
  all:
    kind: map
    over: row.xs
    max_items: 10000
    result: inner
    body:
      inner:
        kind: map
        over: row.xs
        max_items: 10000
        result: same
        body:
          same: {kind: format, template: "{{ item }}"}
outputs: {all: all}
"""
EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = ("revenue", "growth", "of", "the", "quarter", "against", "cost", "and", "debt", "north")
FLOWS = (
    "summarise_and_judge.yaml",
    "extract_and_check.yaml",
    "classify_and_answer.yaml",
    "map_reduce.yaml",
    "debate.py",
)
RETRIEVAL = (  # these ask processors too
    "naive_rag.yaml",
    "advanced_rag.yaml",
    "web_search.yaml",
    "contextual_retrieval.yaml",
)


def example(name):
    functions = None if name.endswith(".py") else EXAMPLES / "functions.py"
    return load_flow(EXAMPLES / name, functions)


def text(draw, least, most):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def rows(count, seed=1):
    """With the columns that the examples need; four questions share a report."""
    draw = random.Random(seed)
    made, report = [], {}
    for number in range(count):
        if number % 4 == 0:
            paragraphs = [text(draw, 20, 120) for _ in range(draw.randint(2, 6))]
            report = {
                "report": number // 4,
                "paragraphs": paragraphs,
                "text": "\n".join(paragraphs),
            }
        made.append(report | {"question": text(draw, 8, 40), "answer": text(draw, 1, 8)})
    return made
