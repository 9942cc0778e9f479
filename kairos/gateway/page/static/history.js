// How what is known of an agent changed: a line of one figure over time, with marks where the agent
// was found to have changed.

import { drawn, element } from "./dom.js";
import { count } from "./format.js";

const WIDTH = 380;
const HEIGHT = 90;
const BOTTOM = 16; // of the times

const time = (at) => new Date(at / 1000).toLocaleTimeString();

/** When it was found to have changed: the points at which there was one more. */
function shifts(points) {
  return points.filter((point, i) => i > 0 && point.reopened > points[i - 1].reopened);
}

export function historyWords(points) {
  if (points.length === 0) return "Nothing is noted yet: it is once a minute, where something has changed.";
  const [first, last] = [points[0], points[points.length - 1]];
  const changed = shifts(points).map(({ at }) => time(at));
  const found = changed.length ? `; it was found to have changed at ${changed.join(", ")}` : "";
  return `Since ${time(first.at)}: from ${count(first.samples)} calls to ${count(last.samples)}${found}`;
}

export function historyCard(points, name, title, words) {
  const known = points.filter((point) => point[name] !== null);
  if (known.length === 0) return element("li", {}, element("h3", {}, title), element("p", {}, "not known"));
  const last = known[known.length - 1];
  return element(
    "li",
    {},
    element("h3", {}, title),
    element("p", {}, words(last[name])),
    chart(points, known, name, title, words),
  );
}

function chart(points, known, name, title, words) {
  const [from, until] = [points[0].at, points[points.length - 1].at];
  const most = Math.max(...known.map((point) => point[name]), 1e-9);
  const ground = HEIGHT - BOTTOM;
  const x = (at) => (until === from ? WIDTH : ((at - from) / (until - from)) * WIDTH);
  const y = (value) => ground * (1 - (0.9 * value) / most);
  // It is constant until the next point.
  const steps = known.flatMap((point, i) => [
    ...(i ? [[x(point.at), y(known[i - 1][name])]] : []),
    [x(point.at), y(point[name])],
  ]);
  if (until === from) steps.unshift([0, steps[0][1]]);
  const line = steps.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ");
  const label = `${title}: from ${words(known[0][name])} to ${words(known[known.length - 1][name])}`;
  return drawn(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    ...shifts(points).map(({ at }) => drawn("line", { class: "size", x1: x(at), x2: x(at), y1: 0, y2: ground })),
    drawn("polyline", { class: "runs", points: line }),
    drawn("line", { class: "axis", x1: 0, x2: WIDTH, y1: ground, y2: ground }),
    drawn("text", { x: 0, y: HEIGHT - 3 }, time(from)),
    drawn("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, time(until)),
  );
}
