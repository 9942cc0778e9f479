// When calls waited, had their prompts read and were answered, on one axis of time.

import { drawn } from "./dom.js";
import { seconds } from "./format.js";

const WIDTH = 640;
const HEIGHT = 18;
const MICRO = 1e6;

/** From the beginning of the workflow to its end, or now; µs. */
export class Axis {
  constructor(from, until) {
    this.from = from;
    this.took = Math.max(1, until - from);
  }

  x(at) {
    return (WIDTH * Math.min(this.took, Math.max(0, at - this.from))) / this.took;
  }

  drawing() {
    const frame = drawn("svg", { viewBox: `0 0 ${WIDTH} 16`, role: "img", "aria-label": "Time" });
    const step = this.step();
    for (let s = 0; s <= this.took / MICRO; s += step) {
      const x = this.x(this.from + s * MICRO);
      const anchor = s === 0 ? "start" : "middle";
      if (x > WIDTH - 20) break;
      frame.append(drawn("text", { x, y: 12, "text-anchor": anchor }, `${+s.toPrecision(6)} s`));
    }
    return frame;
  }

  /** Seconds between two marks: 1, 2 or 5 times a power of ten, of which there are at most eight. */
  step() {
    const least = this.took / MICRO / 8;
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least);
  }
}

/** The call's stretches: kind, from, until. `led`: when the last of those that led to it ended. */
function stretches(call, led, until) {
  const end = call.ended_at ?? until;
  const gone = call.dispatched_at ?? end;
  const first = call.first_token_at ?? gone;
  return [
    ["tools", led, call.arrived_at],
    ["wait", call.arrived_at, gone],
    ["prefill", gone, first],
    ["decode", first, end],
  ];
}

export function callWords(call, until) {
  const end = call.ended_at ?? until;
  const gone = call.dispatched_at ?? end;
  const said = [`waited ${seconds((gone - call.arrived_at) / MICRO)}`];
  if (call.first_token_at !== null) {
    said.push(`prompt ${seconds((call.first_token_at - gone) / MICRO)}`);
    said.push(`answer ${seconds((end - call.first_token_at) / MICRO)}`);
  } else if (call.dispatched_at !== null) {
    said.push(`ran ${seconds((end - gone) / MICRO)}`);
  }
  return said.join(", ");
}

export function callBar(call, led, axis, until) {
  const bar = drawn("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "img",
    "aria-label": callWords(call, until),
  });
  for (const [kind, from, to] of stretches(call, led, until)) {
    const x = axis.x(from);
    const width = axis.x(to) - x;
    if (width <= 0) continue;
    const [y, height] = kind === "tools" ? [HEIGHT / 2 - 1.5, 3] : [2, HEIGHT - 4];
    bar.append(drawn("rect", { class: kind, x, y, width: Math.max(1, width), height }));
  }
  return bar;
}
