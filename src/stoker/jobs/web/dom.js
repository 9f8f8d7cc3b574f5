// Elements made of data. Text is always text: nothing here, nor anywhere on the page, parses markup.

/** An element: attributes by name, `on…` as listeners, `class`; children are nodes or text; null is left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...there(children));
  return node;
}

/** Give a node other children. */
export function fill(node, ...children) {
  node.replaceChildren(...there(children));
  return node;
}

/** Set a node's text, unless it has it already: a screen reader is told of changes alone. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Say something to those who do not see the page. */
export function say(text) {
  write(document.getElementById("said"), text);
}

let made = 0;

/** An id that no other element has. */
export function fresh(prefix) {
  made += 1;
  return `${prefix}-${made}`;
}

/** Ask in the page's dialog; resolves to what `read` finds when it is agreed to, else to null. */
export function askFor({ title, body, agree, danger = false, read = () => true }) {
  const dialog = document.getElementById("dialog");
  const heading = fresh("dialog");
  const form = el("form", { method: "dialog", class: "stack" },
    el("h2", { id: heading }, title),
    ...[body].flat(),
    el("div", { class: "actions" },
      el("button", { type: "submit", value: "agree", class: danger ? "danger" : "primary" }, agree),
      el("button", { type: "submit", value: "", formnovalidate: true }, "Not now")));
  dialog.setAttribute("aria-labelledby", heading);
  fill(dialog, form);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "agree" ? read() : null), { once: true });
  });
}

function there(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}
