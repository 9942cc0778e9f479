"""Check what is read of a call's body."""

import pytest

from kairos.core import InvalidRequest
from kairos.request import body_of, rules_of


@pytest.mark.parametrize(
    "spelt", [b"application/json", b"Application/JSON", b"APPLICATION/JSON; charset=utf-8"]
)
def test_json_is_checked_on_every_route_however_its_type_is_spelt(spelt):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        body_of(rules_of("POST", "/v1/messages"), {b"content-type": spelt}, b'{"temperature": NaN}')
