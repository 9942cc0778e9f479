"""Declared workflows: operators over the rows of a table, in Python or in YAML.

    from kairos import flow

    f = flow.Flow("reports")
    doc = f.input("doc")
    summary = f.llm("summarise", "Summarise:\\n{{ doc.text }}", doc=doc, max_tokens=200)
    f.output("summary", summary)

Nothing runs until the flow is run, with `kairos run`.
"""

from kairos.workflows.compile.pipeline import Passes
from kairos.workflows.declare.declaring import Flow
from kairos.workflows.declare.functions import Functions
from kairos.workflows.declare.openai_batch import from_openai_batch
from kairos.workflows.declare.operand import Operand

__all__ = ["Flow", "Functions", "Operand", "Passes", "from_openai_batch"]
