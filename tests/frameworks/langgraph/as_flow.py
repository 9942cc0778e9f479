"""The same graphs as flows: python as_flow.py NAME ROWS URL

Prints the rows that come out, which nodes are LLM operators, and which are not.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from graphs import GRAPHS

from kairos.flow import run_flow
from kairos.workflows.imports.langgraph import from_langgraph

name, rows, url = sys.argv[1:]
imported = from_langgraph(GRAPHS[name](), name)
declared = imported.flow.declaration
run_flow(imported.flow, json.loads(rows), "out.jsonl", engines=[url], root=Path("runs"))
out = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
print(
    json.dumps(
        {
            "rows": [{key: row[key] for key in row if key != "row"} for row in out],
            "llm": sorted(each.name for each in declared.operators if each.kind == "llm"),
            "opaque": sorted(imported.opaque),
        }
    )
)
