"""Dependency graph of a flow: order, ancestors, and variation by row or group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import Argument, Group, Input, Operator, Output
from kairos.workflows.compile.references import named_in, needs


def in_order(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return the operators of one scope in an order of dependencies.

    An order that is already right stays; otherwise the same operators always give the same order.

    Raises:
        InvalidFlow: some need each other in a circle, which the message names.
    """
    by_name = {each.name: each for each in operators}
    wanted = {each.name: [name for name in needs(each) if name in by_name] for each in operators}
    seen: set[str] = set()
    for each in operators:
        if not seen.issuperset(wanted[each.name]):
            break
        seen.add(each.name)
    else:
        return tuple(operators)
    try:
        return tuple(by_name[name] for name in TopologicalSorter(wanted).static_order())
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        first = min(circle[:-1], key=list(by_name).index)
        at = circle.index(first)
        circle = [*circle[at:-1], *circle[:at], first]
        raise InvalidFlow(
            first,
            f"operators need each other in a circle: {' -> '.join(circle)} (each needs the next); "
            "for repetition use an operator of kind loop",
        ) from error


def ancestors(
    operators: Iterable[Operator],
    names: Iterable[str],
    needed: Callable[[Operator], Iterable[str]] = needs,
) -> frozenset[str]:
    """Return the named operators and all that they need, directly or not."""
    by_name = {each.name: each for each in operators}
    found: set[str] = set()
    look = list(names)
    while look:
        name = look.pop()
        if name not in found and name in by_name:
            found.add(name)
            look.extend(needed(by_name[name]))
    return frozenset(found)


def outputs_need(outputs: Iterable[Output]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(named_in(output.value for output in outputs)))


def varying(operators: Sequence[Operator]) -> Mapping[str, str]:
    """Return by what each operator's value varies: `row`, `group`, `both` (an error), `nothing`.

    The operators must be in the order of `in_order`.
    """
    found: dict[str, str] = {}
    for each in operators:
        if isinstance(each.params, Input):
            found[each.name] = "row"
        elif isinstance(each.params, Group):
            found[each.name] = "group"
        else:
            found[each.name] = _together(found[name] for name in needs(each) if name in found)
    return found


def varies_by(arguments: Iterable[Argument], found: Mapping[str, str]) -> str:
    """Return by what arguments vary, as `varying` does for operators."""
    return _together(found[name] for name in named_in(arguments))


def _together(parts: Iterable[str]) -> str:
    differ = set(parts) - {"nothing"}
    if len(differ) > 1:
        return "both"
    return differ.pop() if differ else "nothing"
