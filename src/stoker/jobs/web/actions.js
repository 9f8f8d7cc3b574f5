// What can be done to a job: cancel, resume, retry, delete. The server says which of them apply now.

import { ask, post } from "./api.js";
import { askFor, el, fill, say } from "./dom.js";

const ACTIONS = {
  cancel: { label: "Cancel", hint: "Saves a checkpoint, then stops", said: "is being cancelled; it saves first" },
  resume: { label: "Resume", hint: "Goes on from its last checkpoint", said: "will go on from its last checkpoint" },
  retry: { label: "Retry", hint: "A new job with the same settings, from the start", said: "was submitted anew" },
  delete: { label: "Delete", hint: "Its history, logs and files", said: "was deleted", danger: true },
};

/**
 * Buttons for what a job can; `changed(job, name, before)` is called after one, with what `begun()` told
 * when it was pressed; `failed(error)` when it was refused.
 */
export function actions({ begun, changed, failed }) {
  const node = el("div", { class: "actions", role: "group", "aria-label": "Actions" });
  let shown = "";
  let job = null;

  async function act(name, button) {
    if (name === "delete" && !(await confirmed())) return;
    button.disabled = true;
    const before = begun();
    try {
      const path = `/jobs/${encodeURIComponent(job.id)}`;
      const answer = name === "delete" ? await ask("DELETE", path) : await post(`${path}/${name}`);
      say(`${job.name} ${ACTIONS[name].said}`);
      changed(answer, name, before);
    } catch (error) {
      failed(error);
    } finally {
      button.disabled = false;
    }
  }

  function confirmed() {
    return askFor({
      title: `Delete ${job.name}?`,
      body: el("p", {}, "Its history, logs, curves and checkpoints go with it. This cannot be undone."),
      agree: "Delete",
      danger: true,
    });
  }

  return {
    node,
    show(now) {
      job = now;
      const names = Object.keys(ACTIONS).filter((name) => now.can?.[name]);
      if (names.join() === shown) return;
      shown = names.join();
      fill(node, names.map((name) => {
        const { label, hint, danger } = ACTIONS[name];
        const button = el("button", { type: "button", title: hint, class: danger ? "danger" : null }, label);
        button.addEventListener("click", () => act(name, button));
        return button;
      }));
    },
  };
}
