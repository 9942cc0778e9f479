// Elements, made of text alone: whatever a name says, it is shown and never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with these attributes (null: none) and children, which are elements or text. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same, of a drawing. */
export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Give the node this text; where it has it, nothing changes. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Make the children of a node those of the items, in order. A child stays the same element as long
 * as there is an item of its key, so that the focus, and what is selected, stay where they are.
 */
export function follow(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = known.get(key);
    known.delete(key);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = key;
    }
    if (child === before) before = child.nextElementSibling;
    else parent.insertBefore(child, before);
    update(child, item);
  }
  for (const child of known.values()) child.remove();
}

/** Buttons to the page before and the one after, and where one is. `go` takes the new offset. */
export class Pages {
  constructor(nav, size, go) {
    this.size = size;
    this.offset = 0;
    this.back = element("button", { type: "button" }, "Before");
    this.where = element("span", { class: "quiet" });
    this.on = element("button", { type: "button" }, "After");
    const move = (by) => {
      this.offset = Math.max(0, this.offset + by);
      go(this.offset);
    };
    this.back.addEventListener("click", () => move(-size));
    this.on.addEventListener("click", () => move(size));
    nav.append(this.back, this.where, this.on);
    this.nav = nav;
  }

  /** There are so many by now; returns whether that leaves the page empty, so it is another now. */
  tell(total) {
    const last = Math.max(0, Math.ceil(total / this.size) - 1) * this.size;
    const isPastEnd = this.offset > last;
    if (isPastEnd) this.offset = last;
    this.nav.hidden = total <= this.size;
    this.back.disabled = this.offset === 0;
    this.on.disabled = this.offset >= last;
    const until = Math.min(total, this.offset + this.size);
    say(this.where, `${this.offset + 1} to ${until} of ${total.toLocaleString("en")}`);
    return isPastEnd;
  }
}
