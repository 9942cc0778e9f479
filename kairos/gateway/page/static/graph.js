// The calls of a workflow as a graph: who led to whom, from left to right.

import { drawn } from "./dom.js";

const WIDTH = 168;
const HEIGHT = 40;
const ACROSS = 44; // between columns
const DOWN = 12;
const LETTERS = 22;

function short(text) {
  return text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text;
}

/** Of each call its column: one more than the last of those that led to it. */
function columns(calls) {
  const column = new Map();
  for (const call of calls) {
    const before = call.parents.filter((id) => column.has(id)).map((id) => column.get(id));
    column.set(call.id, before.length ? Math.max(...before) + 1 : 0);
  }
  return column;
}

/** Where each call stands: a column's calls below each other, as near to those before as may be. */
function places(calls) {
  const column = columns(calls);
  const taken = new Map(); // of each column, the rows
  const place = new Map();
  for (const call of calls) {
    const x = column.get(call.id);
    const rows = taken.get(x) ?? new Set();
    taken.set(x, rows);
    const known = call.parents.filter((id) => place.has(id)).map((id) => place.get(id).y);
    let y = known.length ? Math.min(...known) : 0;
    while (rows.has(y)) y += 1;
    rows.add(y);
    place.set(call.id, { x, y });
  }
  return place;
}

/** `choose` takes the id of a call. */
export function callGraph(calls, chosen, choose) {
  const place = places(calls);
  const left = ({ x }) => 4 + x * (WIDTH + ACROSS);
  const top = ({ y }) => 4 + y * (HEIGHT + DOWN);
  const all = [...place.values()];
  const width = Math.max(...all.map(left)) + WIDTH + 4;
  const height = Math.max(...all.map(top)) + HEIGHT + 4;
  const graph = drawn("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "group",
    "aria-label": `${calls.length} calls`,
  });
  for (const call of calls) {
    const to = place.get(call.id);
    for (const parent of call.parents) {
      const from = place.get(parent);
      if (from === undefined) continue;
      const [x1, y1] = [left(from) + WIDTH, top(from) + HEIGHT / 2];
      const [x2, y2] = [left(to), top(to) + HEIGHT / 2];
      const bend = Math.max(ACROSS / 2, (x2 - x1) / 2);
      const d = `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
      graph.append(drawn("path", { class: "edge", d }));
    }
  }
  for (const call of calls) graph.append(node(call, left, top, place, chosen, choose));
  return graph;
}

function node(call, left, top, place, chosen, choose) {
  const at = place.get(call.id);
  const [x, y] = [left(at), top(at)];
  const isBad = call.outcome !== null && call.outcome !== "finished";
  const kinds = ["node", ...(isBad ? ["bad"] : []), ...(call.id === chosen ? ["chosen"] : [])];
  const name = call.agent ?? "a call without a name";
  const made = drawn(
    "a",
    { class: kinds.join(" "), href: "#why", "aria-label": `${name}, ${state(call)}`, "data-call": call.id },
    drawn("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 5 }),
    drawn("text", { x: x + 9, y: y + 17 }, short(name)),
    drawn("text", { x: x + 9, y: y + 32, class: "quiet" }, state(call)),
  );
  made.addEventListener("click", (event) => {
    event.preventDefault();
    choose(call.id);
  });
  return made;
}

export function state(call) {
  if (call.outcome !== null) return call.outcome;
  return call.dispatched_at === null ? "waits" : "runs";
}
