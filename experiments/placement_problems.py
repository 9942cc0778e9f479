"""Drawn flows for devices that switch models: what placements are compared on."""

from random import Random

from kairos.workflows.compile.device_work import LoadTime, OperatorWork

Problem = tuple[list[OperatorWork], dict[str, LoadTime], int]


def drawn_flow(seed: int) -> Problem:
    """Draw 20 to 100 operators of two to five models, what loads take, and 2 to 16 devices.

    Loads take about as long as an operator, five times or thirty times as long; operators need 2 to
    30 % of those before them; half of the flows stream rows from one operator to the next.
    """
    draw = Random(seed)  # noqa: S311
    count, devices = draw.choice((20, 30, 40, 60, 80, 100)), draw.choice((2, 4, 8, 16))
    models = [f"m{number}" for number in range(draw.randint(2, 5))]
    density, scale = draw.choice((0.02, 0.05, 0.1, 0.3)), draw.choice((1, 5, 30))
    loads = {
        model: LoadTime(
            load_us=scale * draw.uniform(1, 10),
            wake_us=draw.choice((None, scale * draw.uniform(0.2, 1))),
        )
        for model in models
    }
    works: list[OperatorWork] = []
    streams = draw.random() < 0.5
    for number in range(count):
        needs = tuple(each.name for each in works if draw.random() < density)
        us = draw.uniform(2, 40)
        works.append(
            OperatorWork(
                name=f"o{number}",
                model=draw.choice(models),
                needs=needs,
                calls=draw.choice((1, 16, 64)),
                run_us=tuple(us / parts for parts in range(1, devices + 1)),
                last_us=us / 20 if streams else None,
                context=draw.choice((None, "x", "y")),
                reused_us=us * 0.2 if draw.random() < 0.3 else 0.0,
            )
        )
    return works, loads, devices
