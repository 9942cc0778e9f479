// What an admin does: asked once more, done, and said what came of it.

import { tell } from "./ask.js";
import { element, say } from "./dom.js";

/** Whether it is to be done. Escape, and closing, say no. */
function confirmed(words) {
  const yes = element("button", { value: "yes" }, "Yes, do it");
  const no = element("button", { value: "no", autofocus: "" }, "No");
  const choice = element("form", { method: "dialog" }, no, yes);
  const dialog = element("dialog", { "aria-label": "Are you sure?" }, element("p", {}, words), choice);
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    dialog.showModal();
  });
}

/**
 * Do it, if it is confirmed. `said`: the element that tells what came of it: `done`, or what that
 * makes of the answer. Returns the answer; null: it was not done.
 */
export async function actOn(what, said, words, status, done) {
  if (!(await confirmed(words))) return null;
  status.classList.remove("lost");
  try {
    const answer = await tell(`/ui/act/${what}`, said);
    say(status, typeof done === "string" ? done : done(answer));
    return answer;
  } catch (error) {
    status.classList.add("lost");
    say(status, error.message);
    return null;
  }
}
