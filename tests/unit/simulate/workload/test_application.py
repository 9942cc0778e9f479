"""Generative models of applications, the built-in ones and one's own."""

import gzip
from pathlib import Path
from statistics import fmean

import pytest

from kairos.core import InvalidFile, SetupError
from kairos.simulate import load_workflows
from kairos.simulate.workload.application import BUILT_IN, generate, load_application
from tests.support.cli.command import invoke

ROOT = Path(__file__).resolve().parents[4]
OWN = """
app = "chat"
entry = "writer"

[[tasks]]
name = "short"
tokens = { p0 = 5, p100 = 5 }

[[tasks]]
name = "long"
weight = 3
tokens = { p0 = 50, p100 = 50 }

[agents.writer]
shared_prefix_tokens = 10
reads = ["task", "writer", "critic"]
other_tokens = 2
completion_tokens = { p0 = 20, p100 = 20 }
max_calls = 2
next = [{ agent = "critic", task = "long" }]

[agents.critic]
reads = ["writer"]
completion_tokens = { p0 = 7, p100 = 7 }
gap_ms = { p0 = 0, p100 = 0 }
max_calls = 2
next = [{ agent = "writer" }]
"""


def own(tmp_path: Path, text: str = OWN) -> str:
    (tmp_path / "chat.toml").write_text(text)
    return str(tmp_path / "chat.toml")


def test_tasks_come_by_their_weights(tmp_path):
    made = generate(load_application(own(tmp_path)), 1_000, seed=2)

    assert fmean(len(each.calls) == 4 for each in made) == pytest.approx(0.75, abs=0.04)


def test_a_workflow_is_the_same_however_many_there_are_and_another_for_another_seed(tmp_path):
    model = load_application("cg")

    assert generate(model, 3, seed=5) == generate(model, 8, seed=5)[:3]
    assert generate(model, 3, seed=5) != generate(model, 3, seed=6)
    assert generate(model, 0, seed=5) == []
    with pytest.raises(SetupError, match="0 or more; it is -1"):
        generate(model, -1, seed=5)


# The built-in ones


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_sample_is_what_its_model_makes(tmp_path, name):
    sample = ROOT / "traces" / "samples" / f"{name}.jsonl.gz"
    made = tmp_path / "made.jsonl.gz"

    done = invoke("traces", "generate", name, str(made))

    assert done.exit_code == 0
    # Which bytes gzip makes of them is the library's matter.
    assert gzip.decompress(made.read_bytes()) == gzip.decompress(sample.read_bytes())
    assert load_workflows(sample) == generate(load_application(name), 50, seed=1)


def test_sequences_that_run_hold_as_many_tokens_as_preemptions_in_the_paper_tell():
    held = steps = 0
    for name, weight in (("qa", 3), ("rg", 2), ("cg", 1)):
        for each in generate(load_application(name), 1_000, seed=1):
            for call in each.calls:
                held += (
                    weight
                    * call.completion_tokens
                    * (call.prompt_tokens + call.completion_tokens / 2)
                )
                steps += weight * call.completion_tokens

    assert held / steps == pytest.approx(800, rel=0.1)


# One's own


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("max_calls = 2", "calls = 2", r"unknown field `calls` .*; known are: shared_prefix_"),
        ('entry = "writer"', 'entry = "boss"', "there is no agent 'boss'; there are writer, cri"),
        ('reads = ["writer"]', 'reads = ["boss"]', "critic.reads: there is no agent 'boss'"),
        ('{ agent = "writer" }', '{ agent = "boss" }', "critic.next: there is no agent 'boss'"),
        ('task = "long"', 'task = "huge"', "writer.next: there is no task 'huge'; there are short"),
        ("{ p0 = 20, p100 = 20 }", "{ p0 = 20, p50 = 20 }", "tokens: give p0 and p100"),
        ("{ p0 = 20, p100 = 20 }", "{ p0 = 20, p100 = 9 }", "values must ascend"),
        ("{ p0 = 20, p100 = 20 }", "{ p0 = 0, p100 = 9 }", "values must be from 1 to 1000000"),
        ("{ p0 = 20, p100 = 20 }", "{ p0 = 1, p100 = nan }", "values must be from 1 to 1000000"),
        ("{ p0 = 20, p100 = 20 }", "{ p0 = 1, mean = 2 }", "percentiles are written p0, p50"),
        ("p100 = 20 }", 'p100 = 20, "p100.0" = 20 }', "a percentile is given twice"),
        ("max_calls = 2", "max_calls = 0", r">= 1 - at `\$.agents"),
        ("weight = 3", "weight = 0", "> 0"),
        ("weight = 3", "weight = inf", "<= 1000000000.0"),
        ("[agents.critic]", "[agents.task]", "an agent may not be called 'task'"),
        ('app = "chat"', 'app = "chat', r"not TOML: .*line 2"),
    ],
)
def test_a_model_that_is_wrong_is_refused_with_what_would_be_right(tmp_path, old, new, problem):
    assert old in OWN

    with pytest.raises(InvalidFile, match=rf"chat\.toml: .*{problem}"):
        load_application(own(tmp_path, OWN.replace(old, new)))


def test_prompts_longer_than_a_workflow_file_may_tell_are_refused(tmp_path):
    long = OWN.replace("{ p0 = 20, p100 = 20 }", "{ p0 = 20, p100 = 1_000_000 }")
    assert load_application(own(tmp_path, long.replace('["writer"]', str(["writer"] * 9))))

    with pytest.raises(InvalidFile, match="critic: its prompts may be of more than 10000000"):
        load_application(own(tmp_path, long.replace('["writer"]', str(["writer"] * 10 + ["task"]))))


def test_a_model_that_is_nowhere_is_refused():
    with pytest.raises(SetupError, match=r"'chat'; built in are qa, rg, cg, and .* \.toml"):
        load_application("chat")
    with pytest.raises(InvalidFile, match=r"none\.toml: cannot be read"):
        load_application("none.toml")


def test_a_file_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match="more than a megabyte"):
        load_application(own(tmp_path, "# " + "x" * (1 << 20)))
