"""The door of declared workflows: operators over the rows of a table, in Python.

    from kairos import flow

    f = flow.Flow("reports")
    doc = f.input("doc")
    summary = f.llm("summarise", "Summarise:\\n{{ doc.text }}", doc=doc, max_tokens=200)
    f.output("summary", summary)

Nothing runs until the flow is run, with `kairos run`. Programs import from here; what they import
is in `kairos/workflows/declare/`.
"""

from kairos.workflows import Flow, Functions, Operand, Passes, from_openai_batch

__all__ = ["Flow", "Functions", "Operand", "Passes", "from_openai_batch"]
