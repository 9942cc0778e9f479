"""A hardware plan as a picture (SVG): cost against time, and which part runs where."""

import math
from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from kairos.planner.hardware_plan import HardwarePlan, HardwareQuestion, PlannedPool
from kairos.planner.lowering import ObservedCall, lowered
from kairos.planner.work_graph import LLM_KINDS, WorkGraph, order, predecessors
from kairos.tools.hardware_shown import place

MOST_BOXES = 60  # of the graph; those that run most
LEAST_GAP_S = 0.1
WIDTH, CHART, LEFT, TOP = 960, 320, 80, 50
BOX_WIDTH, BOX_HEIGHT, GAP = 200, 44, 26
_INK, _PALE, _MARK = "#24292f", "#8c959f", "#0969da"


def picture(asked: HardwareQuestion, plan: HardwarePlan) -> str:
    """The SVG's text."""
    parts = [*_chart(asked, plan)]
    graph = _most_run(lowered(map(_shown, asked.workflows), visits=1))
    boxes, height = _boxes(graph, plan.chosen)
    parts += boxes
    total = TOP + CHART + 90 + height
    width = max(WIDTH, max((x for x, _ in _places(graph).values()), default=0) + BOX_WIDTH + LEFT)
    style = f'font-family="sans-serif" font-size="12" fill="{_INK}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" '
        f'viewBox="0 0 {width} {total}" {style}>'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _shown(calls: Sequence[ObservedCall]) -> list[ObservedCall]:
    """Without gaps in which nothing happens that is worth a box."""
    return [
        call if call.gap_s >= LEAST_GAP_S else msgspec.structs.replace(call, gap_s=0.0)
        for call in calls
    ]


def _chart(asked: HardwareQuestion, plan: HardwarePlan) -> Iterator[str]:
    usd = [each.usd_per_hour for each in plan.front]
    seconds = [each.prediction.p95_s for each in plan.front]
    limits = [*seconds, *([asked.p95_s] if asked.p95_s < math.inf else [])]
    across, down = max(usd) * 1.1, max(limits) * 1.1

    def at(x: float, y: float) -> tuple[float, float]:
        right = LEFT + x / across * (WIDTH - 2 * LEFT)
        return round(right, 1), round(TOP + CHART - y / down * CHART, 1)

    yield _text(LEFT, 24, "P95 of workflows, s, against USD an hour", size=15)
    (x0, y0), (x1, _), (_, y1) = at(0, 0), at(across, 0), at(0, down)
    yield f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="{_PALE}"/>'
    for share in (0.25, 0.5, 0.75, 1.0):
        x, y = at(across / 1.1 * share, down / 1.1 * share)
        yield _text(x, y0 + 18, f"{across / 1.1 * share:.3g}", anchor="middle")
        yield _text(x0 - 8, y + 4, f"{down / 1.1 * share:.3g}", anchor="end")
    if asked.p95_s < math.inf:
        _, y = at(0, asked.p95_s)
        yield f'<path d="M{x0} {y}H{x1}" stroke="{_MARK}" stroke-dasharray="6 4"/>'
        yield _text(x1, y - 6, f"target {asked.p95_s:g} s", anchor="end")
    line = " ".join(f"{x},{y}" for x, y in map(at, usd, seconds))
    yield f'<polyline points="{line}" fill="none" stroke="{_PALE}"/>'
    for each in plan.front:
        x, y = at(each.usd_per_hour, each.prediction.p95_s)
        chosen = each is plan.chosen
        yield (
            f'<circle cx="{x}" cy="{y}" r="{7 if chosen else 4}" '
            f'fill="{_MARK if chosen else _PALE}"><title>{escape(_told(each))}</title></circle>'
        )
    x, y = at(plan.chosen.usd_per_hour, plan.chosen.prediction.p95_s)
    end = x > WIDTH / 2
    yield _text(x - 12 if end else x + 12, y - 8, _told(plan.chosen), "end" if end else "start")


def _told(each: PlannedPool) -> str:
    return ", ".join(f"{count} x {name}" for name, count in each.pool.counts.items())


def _most_run(graph: WorkGraph) -> WorkGraph:
    kept = sorted(graph.nodes, key=lambda node: -node.runs)[:MOST_BOXES]
    names = {node.name for node in kept}
    return WorkGraph(
        nodes=tuple(node for node in graph.nodes if node.name in names),
        edges=tuple(e for e in graph.edges if e.source in names and e.target in names),
    )


def _places(graph: WorkGraph) -> dict[str, tuple[int, int]]:
    """Where each box is: columns by the longest way to it, rows in order."""
    before, columns, rows = predecessors(graph), dict[str, int](), dict[int, int]()
    places: dict[str, tuple[int, int]] = {}
    for name in order(graph):
        columns[name] = max((columns[e.source] + 1 for e in before[name]), default=0)
        row = rows.get(columns[name], 0)
        rows[columns[name]] = row + 1
        x = LEFT + columns[name] * (BOX_WIDTH + GAP * 2)
        places[name] = x, TOP + CHART + 70 + row * (BOX_HEIGHT + GAP)
    return places


def _boxes(graph: WorkGraph, chosen: PlannedPool) -> tuple[Sequence[str], int]:
    """The parts, and how high all of it is."""
    places = _places(graph)
    parts = [_text(LEFT, TOP + CHART + 54, "What runs where", size=15)]
    for edge in graph.edges:
        (x0, y0), (x1, y1) = places[edge.source], places[edge.target]
        x0, y0, y1 = x0 + BOX_WIDTH, y0 + BOX_HEIGHT // 2, y1 + BOX_HEIGHT // 2
        bend = (x0 + x1) // 2
        parts.append(
            f'<path d="M{x0} {y0}C{bend} {y0} {bend} {y1} {x1} {y1}" fill="none" '
            f'stroke="{_PALE}" stroke-width="{0.5 + 2 * edge.share:.2f}"/>'
        )
    for node in graph.nodes:
        x, y = places[node.name]
        calls = node.kind in LLM_KINDS
        where = place(chosen, node.name) if calls else f"waits {node.work.wait_s:.3g} s"
        shape = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" fill="white"'
        parts.append(f'<rect x="{x}" y="{y}" {shape} stroke="{_INK}"/>')
        parts.append(_text(x + 8, y + 18, _short(f"{node.runs:.3g} x {node.name}")))
        parts.append(_text(x + 8, y + 35, _short(where), colour=_MARK))
    lowest = max((y for _, y in places.values()), default=0)
    return parts, lowest - (TOP + CHART + 70) + BOX_HEIGHT + GAP


def _short(text: str, most: int = 30) -> str:
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _text(
    x: float, y: float, text: str, anchor: str = "start", size: int = 12, colour: str = _INK
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
