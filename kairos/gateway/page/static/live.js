// What goes on, as it comes: server-sent events, while the page can be seen.

import { say } from "./dom.js";

const AGAIN_MS = 3000; // after the server refused; what breaks off, the browser opens again itself

/** Call `show` with each picture. `status`: the element that says how the connection is. */
export function live(status, show) {
  let source = null;
  let timer = null;

  function tell(text, isLost) {
    say(status, text);
    status.classList.toggle("lost", isLost);
  }

  function open() {
    source = new EventSource("/ui/live");
    source.addEventListener("message", (event) => {
      const picture = JSON.parse(event.data);
      tell("Live", false);
      show(picture);
    });
    source.addEventListener("error", () => {
      tell("No connection: what is shown is old", true);
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, AGAIN_MS);
    });
  }

  function close() {
    clearTimeout(timer);
    source.close();
    tell("Paused", false);
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  tell("Connecting", false);
  open();
}
