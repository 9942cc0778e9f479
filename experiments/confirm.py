"""Runs of earlier code that today's gives again: of most changes, most policies know nothing.

Of each policy and placement, one run on every workload is made again, at a load and with a seed
that are drawn. Where all of them come out the same, to the digit, all runs of that policy and
placement count as of today's code. The commit at which they were run stays with them.
"""

from collections.abc import Iterable, Iterator
from random import Random

import msgspec

from experiments.report import commit
from experiments.runs import Cell, Outcome, Results, Row, code_of, in_parallel

Pair = tuple[str, str]  # policy, placement


def confirm(cells: Iterable[Cell], results: Results, processes: int) -> Iterator[str]:
    """Keep what of these cells was run by earlier code and is found to be the same. Says what
    comes of each policy and placement."""
    wanted = [each for each in dict.fromkeys(cells) if each not in results]
    earlier = {cell: results.rows[cell] for cell in wanted if cell in results.rows}
    at_commit = commit()
    same: dict[Pair, list[bool]] = {}
    for cell, outcome in in_parallel(_drawn(earlier.values()), processes):
        same.setdefault(_pair(cell), []).append(_is_same(earlier[cell].outcome, outcome))
        results.add(Row(commit=at_commit, code=code_of(cell), cell=cell, outcome=outcome))
    for pair, each in sorted(same.items()):
        found = f"{', '.join(pair)}: {sum(each)} of {len(each)} as before"
        if not all(each):
            yield found
            continue
        kept = [results.rows[cell] for cell in earlier if _pair(cell) == pair]
        results.add(*(msgspec.structs.replace(row, code=code_of(row.cell)) for row in kept))
        yield f"{found}: {len(kept)} runs kept"


def _drawn(rows: Iterable[Row]) -> list[Cell]:
    """One for each workload, policy, placement and code that ran it; of the same rows, the same."""
    groups: dict[tuple[str, Pair, str], list[Cell]] = {}
    for row in rows:
        groups.setdefault((row.cell.workload, _pair(row.cell), row.code), []).append(row.cell)
    rng = Random(0)  # noqa: S311  (no secret)
    return [rng.choice(group) for group in groups.values()]


def _is_same(before: Outcome, now: Outcome) -> bool:
    return msgspec.structs.replace(before, cpu_s=now.cpu_s) == now


def _pair(cell: Cell) -> Pair:
    return cell.policy, cell.placement
