"""Pictures of what overlapped."""

from xml.etree import ElementTree

import pytest

from kairos.errors import SetupError
from kairos.execution.timeline import Activity
from kairos.tools.gantt import COLOURS, LINES, bars, by_row, svg, write_svg

SVG = "{http://www.w3.org/2000/svg}"


def activity(node, kind, begun_s, ended_s):
    return Activity(0, 0, node, node, kind, round(begun_s * 1e6), round(ended_s * 1e6))


TWO = [activity("vectors", "embed", 10, 12), activity("expanded", "llm", 11, 14)]


def test_bars_stand_where_things_began_and_are_as_long_as_they_took():
    assert bars(TWO, width=8).splitlines() == [
        "vectors   ████         2.00 s",
        "expanded    ██████     3.00 s",
    ]


def test_what_took_no_time_is_seen_and_nothing_gives_nothing():
    assert "█" in bars([*TWO, activity("found", "search", 14, 14)]).splitlines()[2]
    assert bars([]) == ""


def test_pictures_share_a_scale_and_name_what_they_show():
    root = ElementTree.fromstring(svg([("a <chain>", TWO), ("none", []), ("kairos", TWO[:1])]))

    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts[0] == "a <chain>"
    assert "none" not in texts
    assert {"vectors", "expanded", "2.00 s", "3.00 s", "embed", "llm"} <= set(texts)
    widths = {
        each.get("fill"): float(each.get("width"))
        for each in root.iter(f"{SVG}rect")
        if each.get("height") == "14"
    }
    assert widths[COLOURS["llm"]] == 1.5 * widths[COLOURS["embed"]]


def test_rows_have_pictures_of_their_own_the_first_that_began():
    of = [Activity(0, row, "a", "a", "llm", 10 - row, 20) for row in range(10)]
    of.append(Activity(1, 0, "b", "b", "llm", 0, 1))

    assert [title for title, _ in by_row(of)] == ["group 0", "row 9", "row 8", "row 7"]
    many = [Activity(0, 0, f"n{at}", "n", "llm", at, at + 1) for at in range(LINES + 1)]
    assert [len(shown) for _, shown in by_row(many)] == [LINES]


def test_a_picture_that_cannot_be_written_says_so(tmp_path):
    write_svg(tmp_path / "a.svg", [("kairos", TWO)])
    assert (tmp_path / "a.svg").read_text() == svg([("kairos", TWO)])
    with pytest.raises(SetupError, match="cannot be written"):
        write_svg(tmp_path / "none" / "a.svg", [])
