// The page *What it gained*: the last hour under other policies, by simulation.

import { ask, tell, workflowLink } from "./ask.js";
import { byId, element, follow, say } from "./dom.js";
import { count, instant, seconds } from "./format.js";

const AGAIN_MS = 1000; // while it is worked out

const TRUST = {
  good: "so it may be trusted",
  fair: "so only large differences mean something",
  poor: "so it says nothing of other policies",
};
const VERDICTS = {
  quicker: "quicker",
  slower: "slower",
  "no difference": "no difference that the model can tell",
  "not known": "not known",
};

let timer = null;

async function renew(asking = () => ask("/ui/data/gained")) {
  clearTimeout(timer);
  try {
    show(await asking());
  } catch (error) {
    trouble(error.message);
  }
}

function trouble(words) {
  byId("trouble").hidden = words === null;
  say(byId("trouble"), words ?? "");
}

function show({ state, done, problem, found_at: at, gained }) {
  const runs = state === "running";
  byId("no-log").hidden = state !== "no_log";
  byId("start").hidden = runs || state === "no_log";
  byId("stop").hidden = byId("progress").hidden = !runs;
  byId("progress").value = done;
  trouble(problem);
  say(byId("found"), runs ? `${Math.round(100 * done)} % of it` : at === null ? "" : `Up to ${instant(at)}`);
  if (gained !== null) showResult(gained);
  if (runs && !document.hidden) timer = setTimeout(renew, AGAIN_MS);
}

const named = ({ policy, placement }) => `${policy}, ${placement}`;
const percent = (share) => `${share < 0 ? "" : "+"}${(100 * share).toFixed(1)} %`;

function showResult(gained) {
  byId("result").hidden = false;
  const [first] = gained.others;
  say(byId("verdict").firstElementChild, verdictWords(gained, first));
  const parts = [
    `${count(gained.workflows)} workflows with ${count(gained.calls)} calls on ${gained.instances} instances`,
    `${Math.round(100 * gained.share)} % of the tokens of that time; the rest is of workflows that are not whole in it`,
  ];
  say(
    byId("trust"),
    `${parts.join(": ")}. For what served, the model says a mean of ${seconds(gained.ran.mean_s)}; it was ` +
      `${seconds(gained.actual_mean_s)}. It is ${percent(gained.mean_off)} off (95 of 100: ` +
      `${percent(gained.p95_off)}), ${TRUST[gained.trust]}.`,
  );
  const was = { policy: "as it was", mean_s: gained.actual_mean_s, p95_s: gained.actual_p95_s };
  const rows = [
    { ...was, name: "As it was", verdict: null },
    { ...gained.ran, name: `${named(gained.ran)}: what served`, verdict: null },
    ...gained.others.map((each) => ({ ...each, name: named(each) })),
  ];
  follow(byId("policies").tBodies[0], rows, ({ name }) => name, makePolicy, showPolicy);
  say(byId("ran-name"), named(gained.ran));
  say(byId("other-name"), named(first));
  const key = ({ tenant, id }) => `${tenant} ${id}`;
  follow(byId("workflows").tBodies[0], gained.by_workflow, key, makeWorkflow, showWorkflow);
}

function verdictWords({ ran, trust }, other) {
  const under = `Under ${named(other)} workflows`;
  if (other.verdict === "not known") {
    const why = trust === "poor" ? "the model is too far off" : "there are too few workflows";
    return `It cannot be told: ${why}.`;
  }
  if (other.verdict === "no difference") return `${under} would have taken as long, as far as the model can tell.`;
  const { mean, low, high } = other.times;
  const range = `${percent(low - 1)} to ${percent(high - 1)}`;
  const how = other.verdict === "slower" ? "longer" : "less long";
  return `${under} would have taken ${how}: ${percent(mean - 1)} (${range}) against ${named(ran)}.`;
}

function makePolicy({ name }) {
  const number = () => element("td", { class: "number" });
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, name),
    number(),
    number(),
    number(),
    element("td"),
    element("td"),
  );
}

function showPolicy(row, { mean_s: mean, p95_s: p95, times, verdict }) {
  const [, meanCell, p95Cell, timesCell, between, so] = row.cells;
  say(meanCell, seconds(mean));
  say(p95Cell, seconds(p95));
  say(timesCell, times ? times.mean.toFixed(2) : "");
  say(between, times ? `${times.low.toFixed(2)} to ${times.high.toFixed(2)}` : "");
  say(so, verdict === null ? "" : VERDICTS[verdict]);
}

function makeWorkflow({ tenant, id, app }) {
  const number = () => element("td", { class: "number" });
  const link = element("a", { href: workflowLink(tenant, id) }, id);
  return element("tr", {}, element("td", {}, link), element("td", {}, app ?? ""), number(), number(), number());
}

function showWorkflow(row, { actual_s: was, ran_s: ran, others_s: [other] }) {
  [was, ran, other].forEach((value, i) => say(row.cells[2 + i], seconds(value)));
}

byId("start").addEventListener("click", () => renew(() => tell("/ui/ask/gained")));
byId("stop").addEventListener("click", () => renew(() => tell("/ui/ask/gained/stop")));
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : renew()));
renew();
