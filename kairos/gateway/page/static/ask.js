// What the server is asked for, once.

/** The JSON of a path with this query. Throws an Error that says what the server said. */
export function ask(path, query = {}) {
  return answerOf(`${path}?${new URLSearchParams(query)}`, {});
}

/** Have the server do something; the same. */
export function tell(path, said = {}) {
  const headers = { "Content-Type": "application/json" };
  return answerOf(path, { method: "POST", headers, body: JSON.stringify(said) });
}

async function answerOf(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Error("Kairos does not answer");
  }
  const said = await response.json();
  if (!response.ok) throw new Error(said.error?.message ?? `answered ${response.status}`);
  return said;
}

export function workflowLink(tenant, id) {
  return `/ui/workflow?${new URLSearchParams({ tenant, id })}`;
}
