"""The reference of flows has everything that there is."""

import re
from pathlib import Path

import msgspec
import pytest

from kairos.workflows.compile.operators import RESERVED
from kairos.workflows.compile.template_language import ALLOWED_TESTS, COUNTED, FILTERS
from kairos.workflows.declare.yaml_operators import KINDS, NOT_YET, Defaults, FlowEntry

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "flows.md").read_text()
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_and_its_keys_are_told(kind):
    assert kind in CODE
    for field in msgspec.structs.fields(KINDS[kind]):
        assert field.name in CODE, field.name


def test_what_else_there_is_is_told():
    names = {each.name for type_ in (FlowEntry, Defaults) for each in msgspec.structs.fields(type_)}
    names |= {*NOT_YET, *ALLOWED_TESTS, *(set(FILTERS) - {COUNTED}), *RESERVED}
    assert names - CODE == set()


def test_what_is_told_of_filters_is_there():
    told = re.search(r"- Filters: (.*?)\.\n- Tests", PAGE, re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", told)) == set(FILTERS)
