"""A picture of what of a run overlapped: a line for each call, a bar for its time."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from kairos.errors import SetupError
from kairos.execution.timeline import Activity
from kairos.model import SECOND

COLOURS = {  # by kind: of dark and light alike, told apart by those who see no red or green too
    "llm": "#0072b2",
    "embed": "#e69f00",
    "ingest": "#f0e442",
    "search": "#56b4e9",
    "rerank": "#cc79a7",
    "call": "#009e73",
}
_OTHER = "#999999"
ROWS, LINES = 4, 200  # that are shown, and of each row
_LINE, _NAMES, _PLOT, _TOP = 18, 190, 620, 30  # px
_FULL = "█"


def bars(activities: Sequence[Activity], width: int = 60) -> str:
    """As text, in the order in which they began: names, bars on one scale, seconds."""
    if not activities:
        return ""
    begins, scale = _scale(activities, width)
    names = max(len(each.node) for each in activities)
    lines = []
    for each in _in_order(activities):
        left = round((each.begun_us - begins) * scale)
        long = max(1, round(each.us * scale))
        bar = (" " * min(left, width - 1) + _FULL * long)[:width].ljust(width)
        lines.append(f"{each.node:<{names}}  {bar}  {each.us / SECOND:7.2f} s")
    return "\n".join(lines)


Pictures = Sequence[tuple[str, Sequence[Activity]]]  # with their titles


def by_row(activities: Sequence[Activity]) -> Pictures:
    """Those of the first rows, and groups, that began; of each the first calls."""
    rows: dict[tuple[int, int], list[Activity]] = {}
    for each in _in_order(activities):
        rows.setdefault((each.stage, each.row), []).append(each)
    return [
        (f"{'group' if stage else 'row'} {row}", shown[:LINES])
        for (stage, row), shown in list(rows.items())[:ROWS]
    ]


def write_svg(path: Path, pictures: Pictures) -> None:
    """Raises SetupError: the file cannot be written."""
    try:
        path.write_text(svg(pictures))
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror}") from error


def svg(pictures: Pictures) -> str:
    """One below the other, all on one scale. Empty ones are left out."""
    shown = [(title, each) for title, each in pictures if each]
    longest_us = max((_ends(each) - _begins(each) for _, each in shown), default=1)
    parts, top = [], 0
    for title, activities in shown:
        parts.append(f'<text x="8" y="{top + 20}" font-weight="bold">{escape(title)}</text>')
        for number, each in enumerate(_in_order(activities)):
            y = top + _TOP + number * _LINE
            parts.append(_bar(each, y, _begins(activities), longest_us))
        top += _TOP + len(activities) * _LINE + 14
    kinds = dict.fromkeys(each.kind for _, activities in shown for each in activities)
    parts.append(_legend(list(kinds), top))
    size = f'width="{_NAMES + _PLOT + 80}" height="{top + 30}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


def _bar(activity: Activity, y: int, begins_us: int, longest_us: int) -> str:
    per_us = _PLOT / max(1, longest_us)
    x = _NAMES + (activity.begun_us - begins_us) * per_us
    width = max(1.0, activity.us * per_us)
    return (
        f'<text x="{_NAMES - 8}" y="{y + 13}" text-anchor="end">{escape(activity.node)}</text>'
        f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_LINE - 4}" '
        f'fill="{COLOURS.get(activity.kind, _OTHER)}"/>'
        f'<text x="{x + width + 4:.1f}" y="{y + 13}">{activity.us / SECOND:.2f} s</text>'
    )


def _legend(kinds: Sequence[str], top: int) -> str:
    return "".join(
        f'<rect x="{_NAMES + 90 * number}" y="{top + 8}" width="12" height="12" '
        f'fill="{COLOURS.get(kind, _OTHER)}"/>'
        f'<text x="{_NAMES + 90 * number + 18}" y="{top + 18}">{escape(kind)}</text>'
        for number, kind in enumerate(kinds)
    )


def _in_order(activities: Sequence[Activity]) -> list[Activity]:
    return sorted(activities, key=lambda each: (each.begun_us, each.ended_us, each.node))


def _scale(activities: Sequence[Activity], width: int) -> tuple[int, float]:
    begins = _begins(activities)
    return begins, width / max(1, _ends(activities) - begins)


def _begins(activities: Sequence[Activity]) -> int:
    return min(each.begun_us for each in activities)


def _ends(activities: Sequence[Activity]) -> int:
    return max(each.ended_us for each in activities)
