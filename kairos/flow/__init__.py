"""Declared workflows: operators over the rows of a table, in Python or in YAML.

    from kairos import flow

    f = flow.Flow("reports")
    doc = f.input("doc")
    summary = f.llm("summarise", "Summarise:\\n{{ doc.text }}", doc=doc, max_tokens=200)
    f.output("summary", summary)

Nothing runs until the flow is run, with `kairos run`.
"""

from kairos.flow.declaring import Flow
from kairos.flow.functions import Functions
from kairos.flow.openai_batch import from_openai_batch
from kairos.flow.operand import Operand
from kairos.plan.pipeline import Passes

__all__ = ["Flow", "Functions", "Operand", "Passes", "from_openai_batch"]
