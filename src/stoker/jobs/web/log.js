// A job's log: the newest lines, followed as they are written unless the reader has scrolled back.

import { el, fresh, write } from "./dom.js";
import { clock } from "./words.js";

// More are left to the file and to `stoker jobs logs`.
const KEPT = 2000;

export function logPanel() {
  const followBox = el("input", { type: "checkbox", id: fresh("follow"), checked: true });
  const text = el("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Log lines", tabindex: "0" });
  const about = el("span", { class: "soft" }, "Nothing written yet.");
  const node = el("div", {}, el("div", { class: "tools" }, followBox, el("label", { for: followBox.id }, "Follow"), about), text);
  let last = -1;
  let cut = false;

  text.addEventListener("scroll", () => {
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 8;
    if (followBox.checked !== isAtEnd) followBox.checked = isAtEnd;
  });
  followBox.addEventListener("change", () => followBox.checked && toEnd());

  function toEnd() {
    text.scrollTop = text.scrollHeight;
  }

  return {
    node,
    /** Lines in the order of their ids; one that is there already is left out. */
    add(lines) {
      const fresh_ = lines.filter((line) => line.id > last);
      if (!fresh_.length) return;
      const isFollowed = followBox.checked;
      last = fresh_[fresh_.length - 1].id;
      text.append(...fresh_.slice(-KEPT).map((line) =>
        el("div", { class: "line" }, el("time", {}, clock(line.t)), el("span", {}, line.text))));
      cut ||= fresh_.length > KEPT;
      while (text.childElementCount > KEPT) {
        text.firstElementChild.remove();
        cut = true;
      }
      write(about, cut ? `the newest ${KEPT.toLocaleString("en-GB")} lines` : "");
      if (isFollowed) toEnd();
    },
  };
}
