// Small parts that several pages show: a job's state, its progress, its verdict, bars of shares.

import { el, write } from "./dom.js";
import { isKnown, percent, progress, steps } from "./words.js";

/** A job's state as a word with a dot of its colour. */
export function badge() {
  const node = el("span", { class: "badge" });
  return {
    node,
    show(job) {
      node.dataset.state = job.state;
      write(node, job.state === "queued" && isKnown(job.position) ? `queued, ${ordinal(job.position)}` : job.state);
    },
  };
}

/** How far a job is, as a bar with its figures. */
export function progressBar() {
  const bar = el("progress", { max: "1", value: "0", "aria-label": "progress" });
  const text = el("span", { class: "figure" });
  return {
    node: el("div", { class: "progress" }, bar, text),
    show(job) {
      const share = progress(job);
      bar.hidden = share === null;
      bar.value = share ?? 0;
      bar.setAttribute("aria-label", `progress of ${job.name}`);
      write(text, share === null ? (isKnown(job.step) ? `step ${steps(job)}` : "") : `${Math.floor(share * 100)}%`);
    },
  };
}

/** A share of 0 to 1 as a bar with a label and a figure. */
export function shareBar(label) {
  const inner = el("div", { class: "bar-fill" });
  const bar = el("div", { class: "bar", role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" }, inner);
  const figure = el("span", { class: "figure" });
  return {
    node: el("div", { class: "share" }, el("div", { class: "between" }, el("span", {}, label), figure), bar),
    show(share, text = percent(share)) {
      const whole = isKnown(share) ? Math.max(0, Math.min(1, share)) * 100 : 0;
      inner.style.width = `${whole}%`;
      bar.hidden = !isKnown(share);
      bar.setAttribute("aria-valuenow", String(Math.round(whole)));
      bar.setAttribute("aria-valuetext", text);
      write(figure, text);
    },
  };
}

/** 1st, 2nd, 3rd, 4th, 11th. */
function ordinal(place) {
  const ending = place % 100 > 10 && place % 100 < 14 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[place % 10] ?? "th");
  return `${place}${ending}`;
}

/** A refusal as a notice that is read out. */
export function notice(error) {
  return el("p", { class: "notice", role: "alert" }, error.message);
}
