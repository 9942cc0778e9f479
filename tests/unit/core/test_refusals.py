"""What a refusal means, of every reason that there is."""

from typing import get_args

import pytest

from kairos.core import REFUSALS, KairosError, Refuse
from kairos.core.events import Refusal


def test_every_reason_has_a_meaning():
    assert set(REFUSALS) == set(get_args(Refusal))


@pytest.mark.parametrize("reason", get_args(Refusal))
def test_a_client_is_told_an_error_that_says_whether_to_try_again(reason):
    meaning = REFUSALS[reason]
    error = meaning.error(Refuse("r", "m", reason))
    assert isinstance(error, KairosError)
    assert 400 <= error.status < 600
    assert meaning.words
    # What was given up wherever it was does not come back by trying again.
    assert not (meaning.wherever and error.status in (408, 409, 429, 503))
