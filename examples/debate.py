"""Two roles argue over a question for two rounds; a third decides who was right.

kairos run examples/debate.py --inputs questions.jsonl --out debate.jsonl --engine http://gpu1:8000
"""

from kairos.flow import Flow, Operand

ROUNDS = 2

debate = Flow("debate", max_tokens=64, on_cut="keep")
row = debate.input("row")


def exchange(said: Operand) -> Operand:
    """One round: what was said before it, and what each of the two adds."""
    advocate = debate.llm(
        "advocate",
        "Question: {{ question }}\n{{ said }}\nGive the common answer, in one sentence.",
        question=row["question"],
        said=said,
    )
    critic = debate.llm(
        "critic",
        "Question: {{ question }}\nOne says: {{ claim }}\nObject to it, in one sentence.",
        question=row["question"],
        claim=advocate,
    )
    return debate.format(
        "exchange",
        "{{ said }}\nFor: {{ claim }}\nAgainst: {{ objection }}",
        said=said,
        claim=advocate,
        objection=critic,
    )


argument = debate.loop("argument", "", exchange, max_rounds=ROUNDS)
verdict = debate.llm(
    "decide",
    "Question: {{ question }}\n{{ argument }}\n\nAnswer the question in one sentence.",
    question=row["question"],
    argument=argument,
)
debate.output("question", row["question"])
debate.output("argument", argument)
debate.output("verdict", verdict)
