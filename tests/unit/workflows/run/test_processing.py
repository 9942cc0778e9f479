"""A run begins with all processors that its flow needs, or not at all."""

import pytest

from kairos.core import SetupError
from kairos.flow import Flow
from kairos.workflows.run.processing import check_processors, with_models


class Some:
    def __init__(self, *, keeps_collections=False, **models):
        self.models = {kind: name.split() for kind, name in models.items()}
        self.keeps_collections, self.checked = keeps_collections, []

    def check_models(self, plan):
        self.checked.append(plan)


def asked(declare):
    f = Flow("f")
    f.output("it", declare(f, f.input("row")))
    return f


def ranked(f, row):
    return f.map("each", row["list"], lambda item: f.rerank("best", item, row["passages"]))


@pytest.mark.parametrize(
    ("declare", "processors", "option"),
    [
        (lambda f, row: f.embed("v", row["x"]), None, "--embedder URL"),
        (lambda f, row: f.embed("v", row["x"]), Some(rerank="r"), "--embedder URL"),
        (lambda f, row: f.search("s", row["x"], collection=row), None, "--embedder URL"),
        (ranked, Some(embed="e"), "--reranker URL"),
        (lambda f, row: f.search("s", row["x"], collection="d"), Some(), "--collections DIR"),
        (
            lambda f, row: f.ingest("s", row["x"], row["y"], collection="d"),
            None,
            "--collections DIR",
        ),
    ],
)
def test_a_flow_without_its_processors_is_refused_with_the_option_to_give(
    declare, processors, option
):
    with pytest.raises(SetupError, match=f"operator '.*' is of kind .* give {option}"):
        check_processors(asked(declare).compile(), processors)


def test_a_flow_with_its_processors_is_not_refused():
    everything = Some(embed="e", rerank="r", keeps_collections=True)
    check_processors(plan := asked(ranked).compile(), everything)
    assert everything.checked == [plan]
    check_processors(
        asked(lambda f, row: f.search("s", row["x"], collection=row)).compile(), Some()
    )
    check_processors(asked(lambda f, row: row["x"]).compile(), None)


def test_operators_that_name_no_model_have_the_one_that_is_there():
    f = Flow("f")
    row = f.input("row")
    f.output("v", f.embed("v", row["x"], model="other"))
    f.output("w", f.embed("w", row["x"]))
    f.output("r", ranked(f, row))
    found = with_models(f.declaration, Some(embed="e", rerank="r"))
    models = {each.name: getattr(each.params, "model", "-") for each in found.operators}
    assert models == {"row": "-", "v": "other", "w": "e", "each": "-"}
    assert found.operators[3].params.body[0].params.model == "r"
    assert with_models(f.declaration, None) == f.declaration
    assert with_models(f.declaration, Some(embed="", rerank="r")).operators[2].params.model == ""


def test_where_there_are_several_models_an_operator_must_name_its_own():
    f = asked(lambda f, row: f.embed("v", row["x"]))
    with pytest.raises(SetupError, match=r"operator 'v' names no model, .* `model` of chat, e"):
        with_models(f.declaration, Some(embed="chat e"))
    named = asked(lambda f, row: f.embed("v", row["x"], model="e")).declaration
    assert with_models(named, Some(embed="chat e")) == named
