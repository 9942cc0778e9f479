"""What goes on, as a terminal shows it."""

import io

from rich.console import Console

from kairos.cli.top_view import show_now
from kairos.gateway import InstanceNow, NowView
from kairos.gateway.page.now import QueueView


def said(view, before=None, **options):
    out = io.StringIO()
    Console(file=out, width=160).print(show_now(view, before, 10, **options))
    return out.getvalue()


def view(*instances, at=0, finished=0, decides=True):
    return NowView(
        at=at,
        decides=decides,
        workflows_open=None,
        running=0,
        ended={"finished": finished, "failed": 2},
        errors={"queue_full": 7},
        instances=[*instances],
        queue=QueueView(total=0, offset=0, calls=[]),
    )


def test_rates_are_since_the_look_before():
    told = said(view(at=3_000_000, finished=30), view(at=1_000_000, finished=10))
    assert "finished 10.0/s" in told
    assert "failed 2" in told
    assert "queue_full 7" in told


def test_what_an_engine_says_does_not_steer_the_terminal():
    problem = "answered \x1b]0;taken\x07 \x1b[2J 500"
    broken = InstanceNow(id="e:1", state="not_in_use", problem=problem, running=0)
    told = said(view(broken), trouble="no\x1b[31m answer")
    assert "\x1b" not in told
    assert "\x07" not in told
    assert "500" in told
    assert "what is shown is old: no" in told


def test_troubles_of_an_instance_are_all_told():
    broken = InstanceNow(
        id="e:1", state="in_use", problem=None, running=3, circuit="open", short_of_memory=True
    )
    assert "left alone after failures; short of memory" in said(view(broken))
    assert "another process of the pool decides" in said(view(decides=False))
