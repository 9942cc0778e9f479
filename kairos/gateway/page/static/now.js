// The page *Now*.

import { workflowLink } from "./ask.js";
import { Pages, byId, element, follow, say } from "./dom.js";
import { count, perSecond, seconds } from "./format.js";
import { live } from "./live.js";
import { MemoryHistory, memoryChart, memoryFrame, memoryWords } from "./memory.js";

const INSTANCES_PAGE = 24;
const QUEUE_PAGE = 50;
const RATE_S = 10; // what rates are taken over
const MINUTE_S = 60;

const STANDING = {
  policy: "its turn by the policy",
  overdue: "overdue: its workflow has waited for as long as it may",
  returned: "an instance failed it, so it goes first",
  aside: "aside, until it can run alone: one like it may have killed an instance",
};
const STATES = { in_use: "in use", not_in_use: "not in use", draining: "draining" };
const CIRCUITS = {
  open: "left alone after failures",
  "half-open": "on trial after failures",
};

const seen = []; // { at, ended, errors } of the last minute; at in seconds
const memories = new Map(); // by instance
let picture = null;

const instancePages = new Pages(byId("instances-pages"), INSTANCES_PAGE, () => showInstances());
const queuePages = new Pages(byId("queue-pages"), QUEUE_PAGE, () => renewQueue());

function show(next) {
  picture = next;
  const at = next.at / 1e6;
  seen.push({ at, ended: next.ended, errors: next.errors });
  while (seen[0].at < at - MINUTE_S - 1) seen.shift();
  byId("standby").hidden = next.decides;
  remember(at, next.instances);
  showFigures(at);
  showInstances();
  if (queuePages.offset === 0) showQueue(next.queue);
  else renewQueue();
  showLongest();
  showErrors();
}

function remember(at, instances) {
  const here = new Set();
  for (const { id, memory } of instances) {
    here.add(id);
    if (!memory) continue;
    if (!memories.has(id)) memories.set(id, new MemoryHistory());
    memories.get(id).add(at, memory);
  }
  for (const id of memories.keys()) if (!here.has(id)) memories.delete(id);
}

function showFigures(at) {
  const { queue, running, workflows_open: open, ended } = picture;
  const before = seen.find((each) => each.at >= at - RATE_S);
  const rate = (name) => {
    const took = at - before.at;
    const more = (ended[name] ?? 0) - (before.ended[name] ?? 0);
    return took > 0 ? perSecond(Math.max(0, more) / took) : "…";
  };
  const figures = [
    ["Waiting", count(queue.total)],
    ["Running", count(running)],
    ["Open workflows", open === null ? "followed elsewhere" : count(open)],
    ["Finished", rate("finished")],
    ["Failed", count(ended.failed ?? 0)],
    ["Refused while waiting", count(ended.refused ?? 0)],
    ["Cancelled", count(ended.cancelled ?? 0)],
  ];
  follow(
    byId("figures"),
    figures,
    ([name]) => name,
    ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
    (div, [, value]) => say(div.lastElementChild, value),
  );
}

function showInstances() {
  const all = picture.instances;
  instancePages.tell(all.length);
  const page = all.slice(instancePages.offset, instancePages.offset + INSTANCES_PAGE);
  follow(byId("instances"), page, (each) => each.id, makeInstance, showInstance);
}

function makeInstance({ id }) {
  return element(
    "li",
    {},
    element("h3", {}, id),
    element("p", { class: "state" }),
    element("p", { class: "problem" }),
    element("p", { class: "load" }),
    memoryFrame(),
  );
}

function showInstance(card, instance) {
  const troubles = [
    instance.problem,
    CIRCUITS[instance.circuit],
    instance.short_of_memory ? "short of memory, so it says: nothing new goes there" : null,
  ].filter(Boolean);
  const [, state, problem, load, chart] = card.children;
  card.classList.toggle("trouble", troubles.length > 0 || instance.state === "not_in_use");
  say(state, STATES[instance.state]);
  say(problem, troubles.join("; "));
  say(load, loadWords(instance));
  chart.toggleAttribute("hidden", !instance.memory);
  if (instance.memory) {
    chart.setAttribute("aria-label", memoryWords(instance.memory));
    chart.replaceChildren(...memoryChart(memories.get(instance.id), instance.memory));
  }
}

function loadWords({ running, max_num_seqs: most, token_s: tokenS, models }) {
  const words = [`${count(running)}${most ? ` of ${count(most)}` : ""} sequences`];
  if (tokenS && running) {
    const each = (tokenS * 1000).toFixed(1);
    words.push(`${each} ms a token, ${count(running / tokenS)} tokens/s in all`);
  }
  if (models.length) words.push(models.join(", "));
  return words.join(" · ");
}

async function renewQueue() {
  const { offset } = queuePages;
  const response = await fetch(`/ui/data/queue?offset=${offset}`);
  if (response.ok && offset === queuePages.offset) showQueue(await response.json());
}

function showQueue(queue) {
  const isPastEnd = queuePages.tell(queue.total);
  byId("queue").hidden = queue.total === 0;
  byId("queue-empty").hidden = queue.total > 0;
  if (isPastEnd) {
    renewQueue();
    return;
  }
  const body = byId("queue").tBodies[0];
  follow(body, queue.calls, (call) => call.id, makeCall, showCall);
}

function makeCall(call) {
  const cell = (name, text = "") => element("td", name ? { class: name } : {}, text);
  const who = [call.app, call.agent].filter((each) => each !== null).join(" / ");
  return element(
    "tr",
    {},
    cell("number"),
    element("td", {}, element("a", { href: workflowLink(call.tenant, call.workflow_id) }, call.workflow_id)),
    cell("", who || "a call without a name"),
    cell("", `${call.tenant}, ${call.service_class}`),
    cell("number"),
    cell("number"),
    cell("number"),
    cell("number"),
    cell(""),
  );
}

function showCall(row, call) {
  const [place, , , , left, own, waited, deadline, why] = row.cells;
  say(place, count(call.place));
  say(left, seconds(call.expected_remaining_s));
  say(own, seconds(call.expected_call_s));
  say(waited, seconds(call.waited_s));
  say(deadline, call.deadline_s === null ? "" : deadlineWords(call.deadline_s));
  deadline.classList.toggle("late", call.deadline_s !== null && call.deadline_s < 0);
  say(why, STANDING[call.standing]);
}

function showLongest() {
  byId("starving").hidden = picture.longest.length === 0;
  const make = (call) => {
    const link = element("a", { href: workflowLink(call.tenant, call.workflow_id) }, call.workflow_id);
    return element("li", {}, element("span", { class: "number" }), " ", link, ` ${whose(call)}`);
  };
  follow(byId("longest"), picture.longest, ({ id }) => id, make, (item, { waited_s: waited }) =>
    say(item.firstElementChild, seconds(waited)),
  );
}

function whose({ app, agent, tenant, service_class: name }) {
  const who = [app, agent].filter((each) => each !== null).join(" / ");
  return `${who || "a call without a name"}, of ${tenant}, ${name}`;
}

function deadlineWords(s) {
  return s < 0 ? `${seconds(-s)} ago` : `in ${seconds(s)}`;
}

function showErrors() {
  const codes = Object.keys(picture.errors).sort();
  byId("errors").hidden = codes.length === 0;
  byId("errors-empty").hidden = codes.length > 0;
  const before = seen[0].errors;
  follow(
    byId("errors").tBodies[0],
    codes,
    (code) => code,
    (code) =>
      element(
        "tr",
        {},
        element("td", {}, element("code", {}, code)),
        element("td", { class: "number" }),
        element("td", { class: "number" }),
      ),
    (row, code) => {
      say(row.cells[1], count(picture.errors[code]));
      say(row.cells[2], count(picture.errors[code] - (before[code] ?? 0)));
    },
  );
}

live(byId("connection"), show);
