// The KV memory of an instance: what it held in the last two minutes, and what is expected.

import { drawn } from "./dom.js";
import { tokens } from "./format.js";

const WIDTH = 380;
const HEIGHT = 110;
const LEFT = 44; // of the numbers
const BOTTOM = 16; // of the times
const PAST_S = 120;
const NEXT_S = 24;

/** What is remembered of an instance, since the page was opened. */
export class MemoryHistory {
  constructor() {
    this.points = []; // { at, held, kept }: at in seconds
  }

  add(at, memory) {
    this.points.push({ at, held: memory.held, kept: memory.kept });
    while (this.points[0].at < at - PAST_S) this.points.shift();
  }
}

export function memoryWords(memory) {
  const of = memory.size === null ? "" : ` of ${tokens(memory.size)}`;
  const last = memory.expected[memory.expected.length - 1];
  return (
    `KV memory: ${tokens(memory.held)}${of} tokens held, ${tokens(memory.kept)} kept; ` +
    `${tokens(last)} expected in ${NEXT_S} s`
  );
}

export function memoryChart(history, memory) {
  const now = history.points[history.points.length - 1].at;
  const most = Math.max(
    memory.size ?? 1,
    ...history.points.map((point) => point.held + point.kept),
    ...memory.expected,
  );
  const x = (s) => LEFT + ((s + PAST_S) / (PAST_S + NEXT_S)) * (WIDTH - LEFT);
  const y = (amount) => (HEIGHT - BOTTOM) * (1 - (0.92 * Math.min(amount, most)) / most);
  const past = history.points.map((point) => ({ ...point, x: x(point.at - now) }));
  const next = memory.expected.map((_, i) => x(i * memory.step_s));
  const line = (points) => points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ");
  const area = (upper, lower) => line([...upper, ...lower.reverse()]);
  const ground = y(0);
  const held = past.map((p) => [p.x, y(p.held)]);
  const both = past.map((p) => [p.x, y(p.held + p.kept)]);
  return [
    drawn("polygon", {
      class: "band",
      points: area(
        next.map((at, i) => [at, y(memory.high[i])]),
        next.map((at, i) => [at, y(Math.max(0, 2 * memory.expected[i] - memory.high[i]))]),
      ),
    }),
    drawn("polyline", {
      class: "expected",
      points: line(next.map((at, i) => [at, y(memory.expected[i])])),
    }),
    drawn("polygon", { class: "kept", points: area(both, held.slice()) }),
    drawn("polygon", {
      class: "held",
      points: area(
        held,
        past.map((p) => [p.x, ground]),
      ),
    }),
    drawn("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: ground, y2: ground }),
    drawn("line", { class: "axis", x1: x(0), x2: x(0), y1: 0, y2: ground }),
    ...(memory.size === null
      ? []
      : [
          drawn("line", {
            class: "size",
            x1: LEFT,
            x2: WIDTH,
            y1: y(memory.size),
            y2: y(memory.size),
          }),
          drawn("text", { x: LEFT - 4, y: y(memory.size) + 4, "text-anchor": "end" }, tokens(memory.size)),
        ]),
    drawn("text", { x: LEFT - 4, y: ground, "text-anchor": "end" }, "0"),
    drawn("text", { x: LEFT, y: HEIGHT - 3 }, "2 min ago"),
    drawn("text", { x: x(0), y: HEIGHT - 3, "text-anchor": "middle" }, "now"),
    drawn("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, `${NEXT_S} s`),
  ];
}

export function memoryFrame() {
  return drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
}
