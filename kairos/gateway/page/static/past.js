// The page *Past*: what happened at a time that is over, by the log.

import { tell, workflowLink } from "./ask.js";
import { byId, drawn, element, follow, say } from "./dom.js";
import { count, instant, seconds } from "./format.js";

const WIDTH = 900;
const HEIGHT = 140;
const LEFT = 44; // of the numbers
const BOTTOM = 16; // of the times
const AGO_S = 300; // what is asked about at first

const form = byId("when");

/** As a field for local time has it. */
function local(ms) {
  const date = new Date(ms);
  return new Date(ms - 60_000 * date.getTimezoneOffset()).toISOString().slice(0, 19);
}

async function show() {
  const { from, seconds: length } = Object.fromEntries(new FormData(form));
  history.replaceState(null, "", `?${new URLSearchParams({ from, seconds: length })}`);
  byId("result").hidden = true;
  say(byId("found"), "Reading the log");
  try {
    const begins = Math.round(new Date(from).getTime() * 1000);
    showFound(await tell("/ui/ask/past", { begins_at: begins, seconds: Number(length) }));
  } catch (error) {
    say(byId("found"), error.message);
  }
}

function showFound(found) {
  say(byId("found"), `${instant(found.begins_at)} to ${instant(found.ends_at)}`);
  byId("result").hidden = false;
  showFigures(found.moments);
  byId("chart").replaceChildren(chart(found));
  listed("changes", found.changes.map(({ at, what }) => `${new Date(at / 1000).toLocaleTimeString()}: ${what}`));
  listed("failures", Object.entries(found.failures).map(([why, number]) => `${count(number)}: ${why}`));
  const body = byId("slowest").tBodies[0];
  body.replaceChildren(...found.slowest.map(slowRow));
}

function showFigures(moments) {
  const sum = (name) => count(moments.reduce((whole, each) => whole + each[name], 0));
  const most = (name) => count(Math.max(0, ...moments.map((each) => each[name])));
  const figures = [
    ["Arrived", sum("arrived")],
    ["Finished", sum("finished")],
    ["Failed", sum("failed")],
    ["Refused", sum("refused")],
    ["Most that waited", most("waiting")],
    ["Most that ran", most("running")],
  ];
  const make = ([name]) => element("div", {}, element("dt", {}, name), element("dd"));
  follow(byId("figures"), figures, ([name]) => name, make, (div, [, value]) => say(div.lastElementChild, value));
}

function chart({ moments, begins_at: from, ends_at: until }) {
  const most = Math.max(1, ...moments.flatMap(({ waiting, running }) => [waiting, running]));
  const ground = HEIGHT - BOTTOM;
  const x = (i) => LEFT + ((i + 1) / moments.length) * (WIDTH - LEFT);
  const y = (number) => ground * (1 - (0.92 * number) / most);
  const line = (name) => moments.map((each, i) => `${x(i).toFixed(1)},${y(each[name]).toFixed(1)}`).join(" ");
  const time = (at) => new Date(at / 1000).toLocaleTimeString();
  const label = `At most ${count(Math.max(...moments.map((each) => each.waiting)))} calls waited`;
  return drawn(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    drawn("polyline", { class: "waits", points: line("waiting") }),
    drawn("polyline", { class: "runs", points: line("running") }),
    drawn("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: ground, y2: ground }),
    drawn("text", { x: LEFT - 4, y: y(most) + 8, "text-anchor": "end" }, count(most)),
    drawn("text", { x: LEFT - 4, y: ground, "text-anchor": "end" }, "0"),
    drawn("text", { x: LEFT, y: HEIGHT - 3 }, time(from)),
    drawn("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, time(until)),
  );
}

function listed(name, lines) {
  byId(`no-${name}`).hidden = lines.length > 0;
  byId(name).replaceChildren(...lines.map((line) => element("li", {}, line)));
}

function slowRow(call) {
  const link = element("a", { href: workflowLink(call.tenant, call.workflow_id) }, call.workflow_id);
  const number = (value) => element("td", { class: "number" }, seconds(value));
  const outcome = call.why === null ? call.outcome : `${call.outcome}: ${call.why}`;
  return element(
    "tr",
    {},
    element("td", {}, link),
    element("td", {}, call.app ?? ""),
    element("td", {}, call.agent ?? ""),
    element("td", {}, call.instance ?? ""),
    number(call.took_s),
    number(call.waited_s),
    element("td", {}, outcome),
  );
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  show();
});
const query = new URLSearchParams(location.search);
form.elements.from.value = query.get("from") ?? local(Date.now() - 1000 * AGO_S);
if (query.get("seconds")) form.elements.seconds.value = query.get("seconds");
if (query.get("from")) show();
