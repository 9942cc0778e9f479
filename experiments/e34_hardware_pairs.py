"""Figures 8 and 9 of Asgar, Nguyen and Katti (2025): what pairs of hardware cost, over H100::H100.

The paper draws how many tokens a dollar buys on six prefill::decode pairs, for Llama-3-8B and 70B
in two precisions, for 512 tokens in and 4096 out (figure 8) and the reverse (figure 9): within 250
ms to the first token and 20 ms from each to the next, and without such targets. It names no values;
it says that B200::Gaudi3 is best, most of all in FP8, a little above B200::B200, and that
H100::Gaudi3 often comes up to B200::B200 or slightly above. Its model was fitted to measurements
that it does not give.

Here: the same, from data sheets and shapes alone (`experiments/device_pairs.py`), with the
paper's prices and terms. Shares of the peaks that are reached are assumed, and alike for all
vendors. This may flatter Gaudi 3: its peak of 1835 TFLOP/s is the same in BF16 and FP8, so in BF16
it prefills nearly as fast as a B200 at a third of the price.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.device_pairs import PairQuestion, pair
from experiments.report import commit, picture
from kairos.capacity.hardware_options import load_catalogue
from kairos.capacity.serving import NO_TARGETS, LatencyTargets
from kairos.core import CallShape

BASELINE = "h100::h100"
PAIRS = (
    "b200::b200",
    "b200::gaudi3",
    "h100::gaudi3",
    "gaudi3::gaudi3",
    "gaudi3::b200",
    "b200::h100",
    "mi300x::mi300x",
    "h100::a100",
)
MODELS = ("llama-3-8b", "llama-3-70b")
PRECISIONS = ("fp8", "bf16")
SHAPES = {"figure 8": (512, 4096), "figure 9": (4096, 512)}
INTERACTIVE, OFFLINE = "interactive", "offline"
TARGETS = {INTERACTIVE: LatencyTargets(ttft_s=0.250, tpot_s=0.020), OFFLINE: NO_TARGETS}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One pair, for one model and kind of call."""

    commit: str
    figure: str
    targets: str
    model: str
    precision: str
    pair: str
    usd_per_million_tokens: float | None  # None: not in time in any layout
    tokens_per_usd: float | None  # over the baseline's
    prefill: tuple[int, int] | None = None  # tensor, pipeline
    decode: tuple[int, int] | None = None
    link_gbit_s: float | None = None  # that a decode device takes in, steadily


def measure(quick: bool) -> Iterator[Row]:  # noqa: ARG001  (it is done at once)
    at_commit, known = commit(), load_catalogue()
    for figure, (prompt, answer) in SHAPES.items():
        for name, targets in TARGETS.items():
            for model in MODELS:
                for precision in PRECISIONS:
                    asked = PairQuestion(
                        model=known.model_named(model),
                        call=CallShape(prompt=prompt, answer=answer),
                        targets=targets,
                        precision=precision,
                    )
                    rows = (_row(asked, each, name) for each in (BASELINE, *PAIRS))
                    yield from _over_the_first(
                        [msgspec.structs.replace(r, commit=at_commit, figure=figure) for r in rows]
                    )


def _row(asked: PairQuestion, name: str, targets: str) -> Row:
    known = load_catalogue()
    prefill, decode = map(known.accelerator_named, name.split("::"))
    found = pair(asked, prefill, decode)
    row = Row(
        commit="",
        figure="",
        targets=targets,
        model=asked.model.name,
        precision=asked.precision,
        pair=name,
        usd_per_million_tokens=None,
        tokens_per_usd=None,
    )
    if found is None:
        return row
    return msgspec.structs.replace(
        row,
        usd_per_million_tokens=float(f"{found.usd_per_million_tokens:.4g}"),
        prefill=(found.prefill.tensor, found.prefill.pipeline),
        decode=(found.decode.tensor, found.decode.pipeline),
        link_gbit_s=float(f"{found.link_gbit_s:.4g}"),
    )


def _over_the_first(rows: Sequence[Row]) -> Iterator[Row]:
    base = rows[0].usd_per_million_tokens
    for row in rows:
        usd = row.usd_per_million_tokens
        ratio = None if usd is None or base is None else round(base / usd, 3)
        yield msgspec.structs.replace(row, tokens_per_usd=ratio)


def _ratio(rows: Sequence[Row], name: str, **what: str) -> Sequence[float]:
    return [
        row.tokens_per_usd
        for row in rows
        if row.pair == name
        and row.tokens_per_usd is not None
        and all(getattr(row, key) == value for key, value in what.items())
    ]


def section(rows: Sequence[Row]) -> str:
    parts = [_compared(rows)]
    for figure, (prompt, answer) in SHAPES.items():
        for targets in TARGETS:
            cases = [(model, precision) for model in MODELS for precision in PRECISIONS]
            head = [f"{figure}: {prompt} in, {answer} out, {targets}"]
            parts.append(
                table(
                    [*head, *(f"{model}, {precision}" for model, precision in cases)],
                    (
                        [
                            name,
                            *(
                                _cell(
                                    _ratio(
                                        rows,
                                        name,
                                        figure=figure,
                                        targets=targets,
                                        model=model,
                                        precision=precision,
                                    )
                                )
                                for model, precision in cases
                            ),
                        ]
                        for name in (BASELINE, *PAIRS)
                    ),
                )
            )
    return "\n\n".join(parts)


def _cell(found: Sequence[float]) -> str:
    return f"{found[0]:.2f}" if found else "not in time"


def _compared(rows: Sequence[Row]) -> str:
    """What the paper says of two pairs, and what is found."""

    def over(first: str, second: str, **what: str) -> str:
        pairs = zip(_ratio(rows, first, **what), _ratio(rows, second, **what), strict=True)
        ratios = sorted(a / b for a, b in pairs)
        return f"{ratios[0]:.2f} to {ratios[-1]:.2f}"

    long_answers, long_prompts = SHAPES
    return table(
        ["tokens a dollar", "the paper", "long answers", "long prompts"],
        (
            [
                f"{first} over {second}",
                said,
                over(first, second, figure=long_answers),
                over(first, second, figure=long_prompts),
            ]
            for first, second, said in (
                ("b200::gaudi3", "b200::b200", "a little above 1; best of all"),
                ("h100::gaudi3", "b200::b200", "about 1, or slightly above"),
                ("b200::gaudi3", "gaudi3::gaudi3", "not drawn"),
            )
        ),
    )


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = [
        a / b
        for a, b in zip(
            _ratio(rows, "h100::gaudi3", figure="figure 8"),
            _ratio(rows, "b200::b200", figure="figure 8"),
            strict=True,
        )
    ]
    return [
        Figure(
            name="H100::Gaudi3 over B200::B200, tokens a dollar, long answers",
            value=round(sum(found) / len(found), 3),
            unit="ratio, mean over models, precisions and targets",
            target=None,
            better="higher",
            reference=1.0,
        )
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    with picture(path, 2, 2, figsize=(12, 7), sharey=True) as (figure, axes):
        for plot, (name, targets) in zip(
            axes.flat, ((f, t) for f in SHAPES for t in TARGETS), strict=True
        ):
            cases = [(model, precision) for model in MODELS for precision in PRECISIONS]
            for offset, (model, precision) in enumerate(cases):
                what = {"figure": name, "targets": targets, "model": model, "precision": precision}
                heights = [(_ratio(rows, each, **what) or [0.0])[0] for each in PAIRS]
                at = [place + offset * 0.2 for place in range(len(PAIRS))]
                plot.bar(at, heights, width=0.2, label=f"{model}, {precision}")
            plot.axhline(1.0, color="black", linestyle="--", linewidth=0.8)
            plot.set_xticks([place + 0.3 for place in range(len(PAIRS))], PAIRS, rotation=30)
            plot.set_title(f"{name}, {targets}")
        axes[0][0].set_ylabel("tokens a dollar over h100::h100")
        axes[1][0].set_ylabel("tokens a dollar over h100::h100")
        axes[0][0].legend(fontsize=8)
        figure.tight_layout()


STUDY = Study(
    title="What pairs of hardware cost",
    row=Row,
    measure=measure,
    section=section,
    draw=draw,
    figures=figures,
)
