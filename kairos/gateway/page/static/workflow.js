// One workflow: as a graph, along time, and why each of its calls went when and where it did.

import { actOn } from "./act.js";
import { ask } from "./ask.js";
import { Pages, byId, element, follow, say } from "./dom.js";
import { count, instant, seconds } from "./format.js";
import { Axis, callBar } from "./gantt.js";
import { callGraph, state } from "./graph.js";
import { splitBar, splitWords } from "./split.js";

const PAGE = 100; // calls
const AGAIN_MS = 2000; // while it is open
const PATIENCE = 20; // times what an answer took, until the next is asked for

const query = new URLSearchParams(location.search);
const who = { tenant: query.get("tenant") ?? "", id: query.get("id") ?? "" };
const pages = new Pages(byId("calls-pages"), PAGE, () => renew());

let seen = null;
let chosen = null;
let timer = null;

async function renew() {
  clearTimeout(timer);
  const began = performance.now();
  try {
    seen = await ask("/ui/data/workflow", { ...who, offset: pages.offset });
  } catch (error) {
    say(byId("trouble"), `${error.message}. What a log tells of it: kairos explain ID --log DIR`);
    byId("trouble").hidden = false;
    return;
  }
  byId("trouble").hidden = true;
  show();
  offerCancel().catch(() => {});
  if (seen.workflow.ended_at !== null || document.hidden) return;
  timer = setTimeout(renew, Math.max(AGAIN_MS, PATIENCE * (performance.now() - began)));
}

function show() {
  const { workflow } = seen;
  byId("workflow").hidden = false;
  say(byId("title"), `Workflow ${workflow.id}`);
  document.title = `${workflow.id} · Kairos`;
  showFigures();
  const bar = splitBar(seen.split, 18);
  byId("split").replaceChildren(bar, element("p", {}, splitWords(seen.split)));
  showGraph();
  showCalls();
  showWhy();
}

/** What it would have taken under other policies, where that was found out. */
async function showGain() {
  const { others, times } = await ask("/ui/data/gained/workflow", who);
  byId("gain").hidden = times === null;
  if (times === null) return;
  const each = others.map((name, i) => `${seconds(times.others_s[i])} under ${name}`);
  say(
    byId("gain"),
    `By simulation of the last hour it would have taken ${each.join(", ")}; the model says ` +
      `${seconds(times.ran_s)} for what served it, and it took ${seconds(times.actual_s)}.`,
  );
}

/** Where it is open, and whoever looks may, it can be cancelled. */
async function offerCancel() {
  const { may_act: may } = await ask("/ui/data/me");
  byId("cancel").hidden = !may || seen === null || seen.workflow.ended_at !== null;
}

byId("cancel").addEventListener("click", async () => {
  const words = `Cancel the workflow ${who.id} of ${who.tenant}? Its calls end, and nobody gets its reply.`;
  await actOn("cancel", who, words, byId("did"), "It is cancelled");
  renew();
});

function showFigures() {
  const { workflow, at } = seen;
  const ends = { told: "ended", idle: "ended by silence" };
  const figures = [
    ["State", workflow.ended_at === null ? "open" : ends[workflow.ended_by]],
    ["App", workflow.app ?? "not told"],
    ["Tenant", workflow.tenant],
    ["Began", instant(workflow.started_at)],
    ["Lasted", seconds(((workflow.ended_at ?? at) - workflow.started_at) / 1e6)],
    ["Calls", count(workflow.calls_total + workflow.calls_left_out)],
  ];
  follow(
    byId("figures"),
    figures,
    ([name]) => name,
    ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
    (div, [, value]) => say(div.lastElementChild, value),
  );
}

/** The focus stays on the call that has it. */
function showGraph() {
  const focused = document.activeElement?.dataset?.call;
  const graph = callGraph(seen.workflow.calls, chosen, choose);
  byId("graph").replaceChildren(graph);
  if (focused) graph.querySelector(`[data-call="${CSS.escape(focused)}"]`)?.focus();
}

function showCalls() {
  const { workflow, at } = seen;
  pages.tell(workflow.calls_total);
  const until = workflow.ended_at ?? at;
  const axis = new Axis(workflow.started_at, until);
  byId("axis").replaceChildren(axis.drawing());
  const ended = new Map(workflow.calls.map((call) => [call.id, call.ended_at]));
  const led = (call) =>
    Math.max(workflow.started_at, ...call.parents.map((id) => ended.get(id) ?? 0));
  const body = byId("calls").tBodies[0];
  follow(body, workflow.calls, (call) => call.id, makeCall, (row, call) => {
    row.classList.toggle("chosen", call.id === chosen);
    const [who, bar, waited, ran, prompt, cached, answer, where, outcome] = row.cells;
    who.firstElementChild.setAttribute("aria-pressed", String(call.id === chosen));
    bar.replaceChildren(callBar(call, Math.min(led(call), call.arrived_at), axis, until));
    say(waited, seconds(call.wait_s));
    say(ran, call.execution_s === null ? "" : seconds(call.execution_s));
    say(prompt, call.prompt_tokens === null ? "" : count(call.prompt_tokens));
    say(cached, call.cached_tokens === null ? "" : count(call.cached_tokens));
    say(answer, call.completion_tokens === null ? "" : count(call.completion_tokens));
    say(where, call.dispatch?.instance ?? "");
    say(outcome, state(call));
  });
}

function makeCall(call) {
  const name = call.agent ?? "a call without a name";
  const button = element("button", { type: "button" }, name);
  button.addEventListener("click", () => choose(call.id));
  const number = () => element("td", { class: "number" });
  const cells = [number(), number(), number(), number(), number()];
  return element("tr", {}, element("td", {}, button), element("td"), ...cells, element("td"), element("td"));
}

function choose(id) {
  chosen = id;
  showGraph();
  showCalls();
  showWhy();
}

function showWhy() {
  const call = seen.workflow.calls.find((each) => each.id === chosen);
  if (call === undefined) return;
  const lines = seen.explained[call.id].map((line) => element("li", {}, line));
  const name = call.agent ?? "a call without a name";
  const made = [
    element("p", {}, element("strong", {}, name), " ", element("code", {}, call.id)),
    element("ul", {}, ...lines),
  ];
  const words = made.map((each) => each.textContent).join();
  if (byId("why").textContent !== words) byId("why").replaceChildren(...made);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (seen !== null && seen.workflow.ended_at === null) renew();
});
renew();
showGain().catch(() => {});
