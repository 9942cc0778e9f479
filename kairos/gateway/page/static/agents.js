// The page *Agents*: what was learnt of each.

import { ask } from "./ask.js";
import { LogAxis, box, boxWords } from "./box.js";
import { Pages, byId, element, follow, say } from "./dom.js";
import { count, seconds } from "./format.js";
import { historyCard, historyWords } from "./history.js";

const PAGE = 50;
const MEASURES = [
  ["call_s", seconds],
  ["completion_tokens", count],
  ["remaining_s", seconds],
];

const form = byId("choice");
const pages = new Pages(byId("agents-pages"), PAGE, () => renew());
let tenant = new URLSearchParams(location.search).get("tenant") ?? "";

async function renew() {
  history.replaceState(null, "", `?${new URLSearchParams({ tenant })}`);
  try {
    show(await ask("/ui/data/agents", { tenant, offset: pages.offset }));
  } catch (error) {
    byId("agents").hidden = true;
    say(byId("found"), error.message);
  }
}

function show({ tenants, tenant: shown, agents }) {
  tenant = shown ?? "";
  const select = form.elements.tenant;
  select.replaceChildren(...tenants.map((name) => element("option", { value: name }, name)));
  select.value = tenant;
  if (pages.tell(agents.agents_total)) {
    renew();
    return;
  }
  byId("agents").hidden = agents.agents_total === 0;
  say(byId("found"), foundWords(agents));
  const axes = MEASURES.map(([name]) => axisOf(agents.data, name));
  const body = byId("agents").tBodies[0];
  follow(body, agents.data, ({ app, agent }) => `${app} ${agent}`, makeRow, (row, agent) =>
    showRow(row, agent, axes),
  );
}

function foundWords({ agents_total: total, kendall_tau: tau }) {
  if (total === 0) return "Nothing is known yet: agents are learnt of when their workflows end.";
  const agreement =
    tau === null ? "" : `; their ranks agree with the order of mean work: Kendall's tau ${tau.toFixed(2)}`;
  return `${count(total)} agents and apps${agreement}`;
}

function axisOf(agents, name) {
  const known = agents.map((each) => each.learnt?.[name]).filter(Boolean);
  return known.length ? new LogAxis(known) : null;
}

function makeRow({ app, agent }) {
  const number = () => element("td", { class: "number" });
  return element(
    "tr",
    {},
    element("td", {}, app),
    element("td", {}, agentButton(app, agent)),
    number(),
    element("td"),
    number(),
    number(),
    element("td", { class: "box" }),
    element("td", { class: "box" }),
    element("td", { class: "box" }),
    number(),
  );
}

function agentButton(app, agent) {
  const button = element("button", { type: "button" }, agent === "" ? "without a name" : agent);
  button.addEventListener("click", () => showHistory(app, agent));
  return button;
}

async function showHistory(app, agent) {
  try {
    const { points } = await ask("/ui/data/agents/history", { tenant, app, agent });
    byId("history").hidden = false;
    say(byId("history-title"), `How ${agent || "what has no name"} of ${app} changed`);
    say(byId("history-words"), historyWords(points));
    byId("history-charts").replaceChildren(
      historyCard(points, "rank_s", "Rank", seconds),
      historyCard(points, "call_s", "One call, mean", seconds),
      historyCard(points, "remaining_s", "Work of the workflow from then on, mean", seconds),
      historyCard(points, "distance", "How far from settled", (share) => `${(100 * share).toFixed(1)} %`),
    );
    byId("history").scrollIntoView({ block: "nearest" });
  } catch (error) {
    say(byId("found"), error.message);
  }
}

function showRow(row, agent, axes) {
  const [, , calls, learnt, changes, rank, ...rest] = row.cells;
  say(calls, count(agent.samples));
  say(learnt, learntWords(agent));
  say(changes, count(agent.reopened));
  say(rank, agent.rank === null ? "" : seconds(agent.rank));
  MEASURES.forEach(([name, words], i) => {
    const known = agent.learnt?.[name];
    const made = known ? [box(known, axes[i]), boxWords(known, words)] : ["not known"];
    rest[i].replaceChildren(...made);
  });
  say(rest[MEASURES.length], agent.learnt ? agent.learnt.remaining_stages.toFixed(1) : "");
}

function learntWords({ converged, distance }) {
  if (distance === null) return "too few calls";
  const far = `${(100 * distance).toFixed(1)} % from before`;
  return converged ? `settled, ${far}` : `not settled, ${far}`;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  tenant = form.elements.tenant.value;
  pages.offset = 0;
  renew();
});
renew();
