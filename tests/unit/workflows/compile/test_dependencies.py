"""Row A2 of the design: of what was declared only data dependencies are left."""

from kairos import flow
from kairos.workflows import FlowLimits, IssueCall, RunFunction, plan_lines
from kairos.workflows.compile.explain import explain_plan
from kairos.workflows.compile.passes.dependencies import data_dependencies
from kairos.workflows.execute.commands import ReadRows
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import RowRead


def modules(*, purity="pure"):
    """Teola's Figure 3: a chain of modules, in which indexing a document comes before expanding the
    question, though neither needs the other."""
    f = flow.Flow("modules", temperature=0)
    row = f.input("row")
    index = f.call("indexing", len, purity=purity, obj=row["text"])
    expand = f.llm("expand", "More questions like {{ row.question }}", row=row, after=[index])
    search = f.call("search", max, purity="pure", a=index, b=expand, after=[expand, index])
    f.output("answer", f.llm("answer", "{{ found }}", found=search, after=[search]))
    return f


def after(plan):
    return {each.name: each.after for each in plan.declaration.operators if each.after}


def begins(plan):
    """What is under way once a row has been read."""
    executor = Executor(plan, FlowLimits(capacity=4))
    assert any(isinstance(each, ReadRows) for each in executor.start())
    commands = executor.handle(RowRead(0, {"text": "t", "question": "q"}))
    return [each.operator for each in commands if isinstance(each, IssueCall | RunFunction)]


def test_a2_only_data_dependencies_are_left_and_indexing_runs_beside_expansion():
    off = flow.Passes(cached=False, dependencies=False)
    assert begins(modules().compile(off)) == ["indexing"]
    plan = modules().compile(flow.Passes(cached=False))
    assert sorted(begins(plan)) == ["expand", "indexing"]
    assert after(plan) == {}
    assert plan.freed == {
        "expand": ("indexing",),
        "search": ("expand", "indexing"),
        "answer": ("search",),
    }
    assert "need not wait: expand begins beside indexing" in list(plan_lines(explain_plan(plan)))


def test_a2_an_effect_keeps_its_place_before_and_behind():
    plan = modules(purity="effect").compile()
    # All of it is behind the effect.
    assert after(plan) == {
        "expand": ("indexing",),
        "search": ("expand", "indexing"),
        "answer": ("search",),
    }
    f = flow.Flow("f")
    row = f.input("row")
    check = f.llm("check", "Is {{ t }} fit to print?", t=row["text"])
    text = f.llm("text", "{{ t }}", t=row["text"], after=[check])
    # If the check fails, nothing is to be printed.
    f.output("printed", f.call("print", print, purity="effect", value=text))
    f.output("check", check)
    assert after(f.compile()) == {"text": ("check",)}


def test_a2_what_nothing_else_needs_is_computed_all_the_same():
    f = flow.Flow("f")
    row = f.input("row")
    check = f.llm("check", "Is {{ t }} English?", t=row["text"])  # may fail its row
    f.output("text", f.llm("text", "{{ t }}", t=row["text"], after=[check]))
    assert after(f.compile()) == {"text": ("check",)}
    # What only a branch may choose is not computed for sure.
    f = flow.Flow("f")
    row = f.input("row")
    short = f.llm("short", "Short: {{ t }}", t=row["text"])
    long = f.llm("long", "Long: {{ t }}", t=row["text"], after=[short])
    f.output("text", f.branch("which", "n", {"short": short}, n=row["n"]))
    f.output("long", long)
    assert after(f.compile()) == {"long": ("short",)}


def test_a2_bodies_are_freed_too_and_what_is_equal_then_is_merged():
    f = flow.Flow("f")
    row = f.input("row")
    notes = f.llm("notes", "Notes on {{ t }}", t=row["text"])

    def body(item):
        near = f.llm("near", "{{ i }}", i=item, after=[notes])
        again = f.llm("again", "{{ i }}", i=item)
        return f.format("both", "{{ a }}{{ b }}", a=near, b=again)

    f.output("all", f.map("all", row["items"], body))
    f.output("notes", notes)
    plan = f.compile()
    assert plan.freed == {"near": ("notes",)}
    assert plan.merged == {"again": "near"}


def test_a2_the_pass_is_idempotent():
    once, _ = data_dependencies(modules().declaration)
    assert data_dependencies(once) == (once, {})
