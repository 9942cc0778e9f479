// What the server is asked for, once.

/** The JSON of a path with this query. Throws an Error that says what the server said. */
export async function ask(path, query) {
  let response;
  try {
    response = await fetch(`${path}?${new URLSearchParams(query)}`);
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
