"""Runs a framework's flow in its own environment, and says what was found of its calls."""

import asyncio
import json
import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

from kairos.core import Arrived, WorkflowEnded
from kairos.host import start_child
from tests.support.simulate.standin import load

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VENVS = Path(os.environ.get("KAIROS_FRAMEWORKS", ROOT / ".venv-frameworks"))
NAMES = sorted(path.parent.name for path in HERE.glob("*/flow.py"))
SMOKE = {"langgraph", "openai_agents"}  # what the gate installs
WITH_SMOKE = [
    pytest.param(name, marks=pytest.mark.smoke) if name in SMOKE else name for name in NAMES
]
LIMIT_S = 100
QUIET = {  # none of them calls home
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
    "PYDANTIC_DISABLE_PLUGINS": "1",
}
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def python_of(name):
    """Without the framework: skip, in CI fail."""
    python = VENVS / name / "bin" / "python"
    if not python.exists():
        told = f"{name} is not installed: run 'make install-frameworks'"
        (pytest.fail if "CI" in os.environ else pytest.skip)(told)
    return python


def script(name):
    return load(HERE / name / "script.json")


def truth(name):
    """Of each branch that a run can take, who leads to whom."""
    branches = json.loads((HERE / name / "truth.json").read_text())
    return [{tuple(edge) for edge in edges} for edges in branches.values()]


async def run(name, url, directory, *, watched, runs=2):
    """The flow, so many times at once in one program. Returns the marks of the runs."""
    marks = [f"run-{random.randrange(1 << 24):06x}" for _ in range(runs)]
    questions = [f"Why was the harbour given up in 1066? (case {mark})" for mark in marks]
    watch = "import kairos_client.auto; " if watched else ""
    await run_program(name, watch + RUN, url, directory, HERE / name / "flow.py", *questions)
    return marks


async def run_program(name, program, url, directory, *arguments):
    """Returns what it printed."""
    process = await start_child(
        *[python_of(name), "-c", program, *arguments],
        env={
            **QUIET,
            "HOME": str(directory),
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{url}/v1",
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "client"),
        },
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-3000:]
    return output.decode()


class Found:
    """What Kairos took the calls for, and what they were."""

    def __init__(self, served, asked, workflows):
        self.calls = [fact.request for fact in served.facts.all(Arrived)]
        self.ended = [fact.workflow_id for fact in served.facts.all(WorkflowEnded)]
        self.agent = {call.id: asked[call.id][0] for call in self.calls}
        self.parents = {call["id"]: call["parents"] for each in workflows for call in each["calls"]}
        self.marks = defaultdict(set)  # by workflow, of the runs whose calls are in it
        self.of_run = defaultdict(list)
        for call in self.calls:
            marks = asked[call.id][1]
            self.marks[call.workflow_id] |= marks
            for mark in marks:
                self.of_run[mark].append(call)

    def edges(self, calls):
        """Who led to whom, by the agents' true names."""
        return {
            (self.agent[parent], self.agent[call.id])
            for call in calls
            for parent in self.parents[call.id]
        }

    def of_workflow(self, workflow_id):
        return [call for call in self.calls if call.workflow_id == workflow_id]


async def found(served, asked):
    """`asked`: by request id, who asked, and the marks of its run (`engine.asked`)."""
    workflows = []
    for workflow_id in {fact.request.workflow_id for fact in served.facts.all(Arrived)}:
        answer = await served.ask("GET", f"/v1/workflows/{workflow_id}?limit=1000")
        workflows.append(answer.json())
    return Found(served, asked, workflows)
