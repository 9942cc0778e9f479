// The page *Operate*: engines, workflows and settings, for admins. Others see the engines.

import { actOn } from "./act.js";
import { ask } from "./ask.js";
import { byId, element, follow, say } from "./dom.js";
import { count } from "./format.js";

const AGAIN_MS = 2000;
const STATES = { in_use: "in use", not_in_use: "not in use", draining: "draining" };

let mayChange = false; // engines
let timer = null;

async function renewEngines() {
  clearTimeout(timer);
  try {
    const { instances } = await ask("/ui/data/engines");
    follow(byId("engines").tBodies[0], instances, ({ id }) => id, makeRow, showRow);
  } catch (error) {
    trouble(error);
  }
  if (!document.hidden) timer = setTimeout(renewEngines, AGAIN_MS);
}

function makeRow({ id }) {
  const button = element("button", { type: "button" }, "Drain and remove");
  button.setAttribute("aria-label", `Drain and remove ${id}`);
  button.addEventListener("click", () => drain(id));
  const number = element("td", { class: "number" });
  const act = element("td", {}, button);
  return element("tr", {}, element("th", { scope: "row" }, id), element("td"), number, element("td"), element("td"), act);
}

function showRow(row, { state, running, problem, named }) {
  const [, stateCell, runningCell, problemCell, namedCell, act] = row.cells;
  say(stateCell, STATES[state]);
  say(runningCell, count(running));
  say(problemCell, problem ?? "");
  say(namedCell, named ? "the settings" : "an operator");
  act.firstElementChild.hidden = !mayChange || state === "draining";
}

function trouble(error) {
  byId("did").classList.add("lost");
  say(byId("did"), error.message);
}

async function act(what, said, words, done) {
  const answer = await actOn(what, said, words, byId("did"), done);
  renewEngines();
  return answer;
}

function drain(id) {
  const words = `Send ${id} nothing more? It is gone once what runs there has ended. Added again, it is used again.`;
  act("drain", { id }, words, ({ running }) => `${id} takes no more calls; ${running} run there`);
}

byId("add").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = [...new FormData(event.target)].filter(([, value]) => value !== "");
  const said = Object.fromEntries(given.map(([name, value]) => [name, name === "url" ? value : Number(value)]));
  const added = await act("add", said, `Send calls to ${said.url}?`, ({ id }) => `${id} is added`);
  if (added !== null) event.target.reset();
});

byId("cancel").addEventListener("submit", (event) => {
  event.preventDefault();
  const said = Object.fromEntries(new FormData(event.target));
  const words = `Cancel the workflow ${said.id} of ${said.tenant}? Its calls end, and nobody gets its reply.`;
  act("cancel", said, words, `The workflow ${said.id} is cancelled`);
});

byId("reload").addEventListener("click", () =>
  act("reload", {}, "Read the settings again, and put into force what differs?", reloadWords),
);

function reloadWords({ changed, needs_restart: waiting, problem }) {
  if (problem !== null) return `All stays as it is: ${problem}`;
  const what = changed.length ? changed.join(", ") : "nothing";
  return `Changed: ${what}${waiting.length ? `; needs a restart, and stays as it was: ${waiting.join(", ")}` : ""}`;
}

async function begin() {
  const me = await ask("/ui/data/me");
  mayChange = me.may_change_engines;
  say(byId("who"), me.name === null ? "" : `You are ${me.name}.`);
  byId("why-not").hidden = me.may_act;
  say(byId("why-not"), me.may_act ? "" : `From here nothing can be changed: ${me.why_not}.`);
  byId("add").hidden = !mayChange;
  byId("cancelling").hidden = !me.may_act;
  byId("reloading").hidden = !me.may_act || !me.may_reload;
  renewEngines();
}

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : renewEngines()));
begin().catch(trouble);
