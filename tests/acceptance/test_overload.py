"""Five minutes of twice what the engines can do."""

import pytest

from tests.acceptance.overload import Overload

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]


async def test_who_is_refused_knows_at_once_who_is_not_is_served_and_then_all_is_as_before(
    tmp_path,
):
    run = Overload(tmp_path, seconds=300, show=print)
    wrong = await run.run()

    print(f"\n{run.summary()}")
    assert wrong == []
