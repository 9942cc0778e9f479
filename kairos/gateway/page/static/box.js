// A distribution as a box: half of it, its middle, and nine tenths of it, on a logarithmic axis.

import { drawn } from "./dom.js";

const WIDTH = 150;
const HEIGHT = 20;
const LEAST = 1e-3;

/** The axis of several distributions: from the least of them to the most. */
export class LogAxis {
  constructor(distributions) {
    const values = distributions.flatMap((each) => [each.p5, each.p95]);
    this.from = Math.log(Math.max(LEAST, Math.min(...values)));
    this.until = Math.max(this.from + 0.1, Math.log(Math.max(LEAST, ...values)));
  }

  x(value) {
    const share = (Math.log(Math.max(LEAST, value)) - this.from) / (this.until - this.from);
    return 2 + (WIDTH - 4) * Math.min(1, Math.max(0, share));
  }
}

export function box(distribution, axis) {
  const x = (name) => axis.x(distribution[name]);
  const middle = HEIGHT / 2;
  return drawn(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, // it stands above its words
    drawn("line", { class: "edge", x1: x("p5"), x2: x("p95"), y1: middle, y2: middle }),
    drawn("rect", {
      class: "kept",
      x: x("p25"),
      y: 4,
      width: Math.max(2, x("p75") - x("p25")),
      height: HEIGHT - 8,
    }),
    drawn("rect", { class: "held", x: x("p50") - 1.5, y: 2, width: 3, height: HEIGHT - 4 }),
  );
}

/** `words` says a value. */
export function boxWords(distribution, words) {
  const { mean, p50, p95 } = distribution;
  return `middle ${words(p50)}, mean ${words(mean)}, 95 of 100 under ${words(p95)}`;
}
