import pytest

from kairos import flow
from kairos.core import SetupError
from kairos.workflows.compile.invalid import InvalidFlow


def words(text):
    return text.split()


def test_a_flow_registers_the_functions_that_it_calls():
    f = flow.Flow("f")
    doc = f.input("doc")
    f.output("a", f.call("split", words, purity="pure", version="2", text=doc["text"]))
    f.output("b", f.call("again", words, text=doc["title"]))
    assert list(f.functions) == ["words"]
    assert f.functions["words"].function("a b") == ["a", "b"]
    plan = f.compile()
    assert plan.declaration.operators[2].params.version == "2"
    f.functions.check(plan)


def test_purity_that_is_not_said_is_an_effect():
    functions = flow.Functions()
    functions.register(words, purity="pure")
    f = flow.Flow("f", functions=functions)
    f.call("a", "words", text="x")
    f.call("b", print, value="x")
    assert [each.purity for each in f.declaration.operators] == ["pure", "effect"]
    with pytest.raises(InvalidFlow, match="registered as pure"):
        f.call("c", "words", purity="effect", text="x")


def test_functions_are_named_once_and_known_by_name():
    functions = flow.Functions()
    functions.pure(words)
    functions.register(words, purity="pure")
    with pytest.raises(SetupError, match="two functions are called 'words'"):
        functions.register(len, purity="pure", name="words")
    with pytest.raises(SetupError, match="no function 'nothing' is registered; there are: words"):
        functions["nothing"]
    with pytest.raises(SetupError, match="declared in two ways"):
        functions.effect(words)


def test_a_plan_that_takes_a_function_for_purer_than_it_is_is_refused():
    f = flow.Flow("f")
    f.output("a", f.call("split", words, purity="pure", text="a b"))
    others = flow.Functions()
    others.effect(words)
    with pytest.raises(SetupError, match="calls 'words' as pure, version ''; it is registered as"):
        others.check(f.compile())
