"""`python -m bench.flows --quick`, in this process: what it measures must make sense."""

import pytest

from bench import flows


def test_each_row_takes_a_summary_that_ten_share_four_views_and_a_verdict():
    drive = flows.Drive(flows.reports().compile(), flows.documents(40))
    drive.run()
    assert drive.written == 40
    assert drive.calls == 40 // 10 + 40 * 5
    assert drive.cpu_s > 0


@pytest.mark.long
def test_memory_does_not_grow_with_the_rows():
    assert flows.growth_mib(3_000) < 20
