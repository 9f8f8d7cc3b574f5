// Submit a job: a workload with a form of its settings, or a script of the folders that the server allows.

import { get, idempotencyKey, post } from "./api.js";
import { notice } from "./badge.js";
import { el, fill, say } from "./dom.js";
import { schemaForm } from "./form.js";
import { kind } from "./words.js";

const ARGUMENTS = {
  properties: {
    arguments: { type: "array", items: { type: "string" }, default: [], byLine: true, description: "What the script is given on its command line, one argument a line" },
  },
};

const GIB = 2 ** 30;
const optional = (type, told) => (
  { ...told, anyOf: [{ type, minimum: 0 }, { type: "null" }], default: null });
const needsOf = (of) => ({
  properties: {
    gpus: optional("integer", {
      label: "GPUs",
      blank: of === "script" ? "one, where there is one" : "as its settings say",
      description: "Cards that are its own while it runs",
    }),
    vram_bytes: optional("number", {
      label: "Free GPU memory, GiB",
      blank: "any",
      description: "A card with less is not taken",
    }),
    ram_bytes: optional("number", {
      label: "Free memory, GiB",
      blank: "any",
      description: "It waits until the machine has so much",
    }),
  },
});
// Settings that say how many cards a workload needs.
const DEVICES = ["train.device", "train.devices"];

export function newPage(main, { query, go }) {
  const ending = new AbortController();
  const trouble = el("div", { "aria-live": "assertive" });
  const place = el("div");
  fill(main, el("h1", { tabindex: "-1" }, "New job"), trouble, place);
  load();

  async function load() {
    try {
      const { workloads, scripts = [] } = await get("/workloads", ending);
      const from = query.get("from") ? await get(`/jobs/${encodeURIComponent(query.get("from"))}`, ending) : null;
      show(workloads, scripts, from);
    } catch (error) {
      if (!ending.signal.aborted) fill(trouble, notice(error));
    }
  }

  function show(workloads, scripts, from) {
    let form = null;
    let needs = null;
    // Cards that were another's, with its settings: where those change, they say how many it needs.
    let isCopied = false;
    // Sent twice, by a double click or after a lost answer, a job is made once; another job has another key.
    let key = idempotencyKey();
    const name = el("input", { id: "job-name", type: "text", maxlength: "200", autocomplete: "off", "aria-describedby": "job-name-hint" });
    const what = el("select", { id: "job-kind" },
      el("optgroup", { label: "Workloads" }, workloads.map((one) => el("option", { value: `workload:${one.name}` }, one.title ? `${one.name}: ${one.title}` : one.name))),
      scripts.length ? el("optgroup", { label: "Scripts" }, scripts.map((path) => el("option", { value: `script:${path}` }, path))) : null);
    const settings = el("div");
    const button = el("button", { type: "submit", class: "primary" }, "Submit");
    const rest = el("div", { role: "alert" });

    if (from) {
      name.value = from.name;
      what.value = from.workload ? `workload:${from.workload}` : `script:${from.script_name}`;
      if (what.selectedIndex < 0) {
        fill(trouble, notice(new Error(`${kind(from)} is not among what this server runs now.`)));
        what.selectedIndex = 0;
        from = null;
      }
    }
    choose();
    if (from) {
      form.set(from.workload ? from.config : { arguments: from.arguments });
      const { gpus, vram_bytes: vram, ram_bytes: ram } = from;
      needs.set({ gpus, vram_bytes: scaled(vram, 1 / GIB), ram_bytes: scaled(ram, 1 / GIB) });
      isCopied = true;
    }
    what.addEventListener("change", choose);

    fill(place, el("form", { class: "stack submit", novalidate: true, onsubmit: submit, oninput: () => { key = idempotencyKey(); } },
      el("div", { class: "field" }, el("label", { for: "job-kind" }, "What to run"), what),
      el("div", { class: "field" }, el("label", { for: "job-name" }, "Name"), name,
        el("p", { id: "job-name-hint", class: "hint" }, "To find it again. Left empty, it is named for what it runs.")),
      settings, rest,
      el("div", { class: "actions sticky" }, button, el("a", { class: "button", href: "#/" }, "Back"))));

    function choose() {
      const [of, chosen] = divide(what.value);
      form = of === "workload"
        ? schemaForm(workloads.find((one) => one.name === chosen).schema, { prefix: "config." })
        : schemaForm(ARGUMENTS, { prefix: "" });
      needs = schemaForm(needsOf(of), { prefix: "" });
      isCopied = false;
      needs.node.addEventListener("input", ({ target }) => { isCopied &&= target.name !== "gpus"; });
      form.node.addEventListener("input", ({ target }) => {
        if (isCopied && DEVICES.includes(target.name)) needs.set({ gpus: null });
      });
      fill(settings, el("h2", {}, "Settings"), form.node,
        el("details", { class: "group apart", open: from !== null },
          el("summary", {}, "GPUs and memory"), needs.node));
    }

    async function submit(event) {
      event.preventDefault();
      fill(rest);
      fill(trouble);
      // The form's own are read last: of two refusals, the upper one has the focus.
      const needed = needs.values();
      const values = form.values();
      if (values === null || needed === null) return;
      for (const one of ["vram_bytes", "ram_bytes"]) {
        if (one in needed) needed[one] = Math.round(needed[one] * GIB);
      }
      const [of, chosen] = divide(what.value);
      const called = name.value.trim();
      const body = { ...(called ? { job_name: called } : {}), ...(of === "workload" ? { workload: chosen, config: values } : { script: chosen, arguments: values.arguments ?? [] }), ...needed };
      button.disabled = true;
      try {
        const job = await post("/jobs", body, { headers: { "Idempotency-Key": key } });
        say(`${job.name} was submitted`);
        go(`#/jobs/${encodeURIComponent(job.id)}`);
      } catch (error) {
        const isNeed = ({ field }) => field in needsOf(of).properties;
        const told = error.fields ?? [];
        const left = told.length
          ? [...needs.showErrors(told.filter(isNeed)), ...form.showErrors(told.filter((one) => !isNeed(one)))]
          : [error.message];
        fill(rest, left.map((text) => el("p", { class: "notice" }, text)));
      } finally {
        button.disabled = false;
      }
    }
  }

  return { title: "New job", close: () => ending.abort() };
}

function scaled(value, by) {
  return value === null ? null : value * by;
}

function divide(value) {
  const at = value.indexOf(":");
  return [value.slice(0, at), value.slice(at + 1)];
}
