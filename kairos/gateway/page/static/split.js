// Where the time of a workflow went, as one bar.

import { drawn } from "./dom.js";
import { seconds } from "./format.js";

const WIDTH = 600;
const PARTS = [
  ["waiting_s", "wait", "waiting"],
  ["prompts_s", "prefill", "prompts"],
  ["answering_s", "decode", "answers"],
  ["elsewhere_s", "tools", "elsewhere"],
];

export function splitWords(split) {
  const whole = PARTS.reduce((sum, [name]) => sum + split[name], 0) || 1;
  return PARTS.map(([name, , word]) => {
    const share = Math.round((100 * split[name]) / whole);
    return `${word} ${seconds(split[name])} (${share} %)`;
  }).join(", ");
}

export function splitBar(split, height) {
  const whole = PARTS.reduce((sum, [name]) => sum + split[name], 0) || 1;
  const bar = drawn("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`,
    preserveAspectRatio: "none",
    height,
    role: "img",
    "aria-label": splitWords(split),
  });
  let x = 0;
  for (const [name, kind] of PARTS) {
    const width = (WIDTH * split[name]) / whole;
    bar.append(drawn("rect", { class: kind, x, y: 0, width, height }));
    x += width;
  }
  return bar;
}
