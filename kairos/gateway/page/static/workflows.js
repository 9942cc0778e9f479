// The page *Workflows*: those that are open, and those that ended lately.

import { ask, workflowLink } from "./ask.js";
import { Pages, byId, element, follow, say } from "./dom.js";
import { count, instant, seconds } from "./format.js";
import { splitBar } from "./split.js";

const PAGE = 50;
const STATES = { ended: "ended", silent: "ended by silence", cancelled: "cancelled" };
const DOING = { runs: "open: a call runs", waits: "open: waits", away: "open: no call" };

const form = byId("search");
const pages = new Pages(byId("workflows-pages"), PAGE, () => search());

/** What is looked for stands in the page's address, so that it can be passed on. */
function remember() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) query.set(name, value);
  history.replaceState(null, "", `?${query}`);
  return query;
}

function recall() {
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (form.elements[name]) form.elements[name].value = value;
  }
}

async function search() {
  const query = remember();
  query.set("offset", pages.offset);
  say(byId("found"), "Searching");
  try {
    show(await ask("/ui/data/workflows", query));
  } catch (error) {
    byId("workflows").hidden = true;
    say(byId("found"), error.message);
  }
}

function show(found) {
  const isPastEnd = pages.tell(found.total);
  if (isPastEnd) {
    search();
    return;
  }
  say(byId("found"), `${count(found.total)} of the ${count(found.remembered)} that are remembered`);
  byId("workflows").hidden = found.total === 0;
  const body = byId("workflows").tBodies[0];
  follow(body, found.workflows, (each) => `${each.tenant} ${each.id}`, makeRow, showRow);
}

function makeRow({ tenant, id, app, started_at: at }) {
  return element(
    "tr",
    {},
    element("td", {}, element("a", { href: workflowLink(tenant, id) }, id)),
    element("td", {}, app ?? ""),
    element("td", {}, tenant),
    element("td"),
    element("td", {}, instant(at)),
    element("td", { class: "number" }),
    element("td", { class: "number" }),
    element("td"),
  );
}

function showRow(row, workflow) {
  const [, , , state, , calls, lasted, split] = row.cells;
  say(state, workflow.state === "open" ? DOING[workflow.doing] : STATES[workflow.state]);
  say(calls, count(workflow.calls));
  say(lasted, seconds(workflow.lasted_s));
  split.replaceChildren(splitBar(workflow.split, 14));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  pages.offset = 0;
  search();
});
recall();
search();
