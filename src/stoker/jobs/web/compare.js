// Several jobs beside each other: their curves in one chart, their figures, and the settings in which they differ.

import { follow, get, pages } from "./api.js";
import { badge, notice } from "./badge.js";
import { board, colourKey, split } from "./curves.js";
import { el, fill, fresh } from "./dom.js";
import { duration, kind, leaf, moment, number, ran, rate, settings as settingsOf, steps } from "./words.js";

const MOST = 6;

export function comparePage(main, { ids, go }) {
  const ending = new AbortController();
  const trouble = el("div");
  const runs = new Map();
  const finals = new Map();
  const labels = [];
  const charts = board({ empty: "No points yet.", names: labels });
  const figures = el("div", { class: "wide" });
  const settings = el("div", { class: "wide" });
  const chooser = el("div");
  let stream = null;

  fill(main, el("h1", { tabindex: "-1" }, "Compare"), trouble, chooser);
  start();

  async function start() {
    try {
      await showChooser();
      if (ids.length < 2) return;
      main.append(section("Figures", figures), section("Curves", charts.node), section("Settings that differ", settings));
      for (const id of ids.slice(0, MOST)) runs.set(id, { job: await get(`/jobs/${encodeURIComponent(id)}`, ending), last: 0, busy: false });
      name();
      show();
      await Promise.all([...runs.values()].map(load));
      charts.flush();
      stream = follow("/stream", { open: () => runs.forEach(load), state: changed });
    } catch (error) {
      if (!ending.signal.aborted) fill(trouble, notice(error));
    }
  }

  /** Names that tell the runs apart: by their own, with a number where two share one. */
  function name() {
    const used = new Map();
    for (const run of runs.values()) {
      const times = (used.get(run.job.name) ?? 0) + 1;
      used.set(run.job.name, times);
      run.label = times > 1 ? `${run.job.name} (${times})` : run.job.name;
      labels.push(run.label);
    }
  }

  /** The points that came since the last look. */
  async function load(run) {
    if (run.busy) return;
    run.busy = true;
    try {
      for await (const page of pages(`/jobs/${encodeURIComponent(run.job.id)}/metrics?limit=5000`, { signal: ending.signal, after: run.last })) {
        for (const point of page.points) {
          run.last = Math.max(run.last, point.id);
          const { kind: of, quantity } = split(point.name);
          if (quantity === "epoch") continue;
          charts.put(of ? `${quantity} (${of})` : quantity, run.label, point);
          note(run, point);
        }
      }
      show();
    } catch (error) {
      if (!ending.signal.aborted) fill(trouble, notice(error));
    }
    run.busy = false;
  }

  function note(run, { name: of, step, value }) {
    const known = finals.get(of) ?? new Map();
    finals.set(of, known);
    const before = known.get(run.job.id);
    if (value !== null && (!before || step >= before.step)) known.set(run.job.id, { step, value });
  }

  function changed(job) {
    const run = runs.get(job.id);
    if (!run) return;
    run.job = job;
    show();
    load(run);
  }

  function show() {
    const jobs = [...runs.values()].map((run) => run.job);
    const head = el("thead", {}, el("tr", {}, el("td"), [...runs.values()].map((run, at) =>
      el("th", { scope: "col" }, colourKey(at), el("a", { href: `#/jobs/${encodeURIComponent(run.job.id)}` }, run.label)))));
    const states = jobs.map((job) => { const one = badge(); one.show(job); return one.node; });
    const rows = [
      ["State", states],
      ["Runs", jobs.map(kind)],
      ["Submitted", jobs.map((job) => moment(job.created))],
      ["Step", jobs.map(steps)],
      ["Speed", jobs.map((job) => rate(job.rate))],
      ["Ran", jobs.map(ran)],
      ["Left", jobs.map((job) => (job.eta_s === null || job.eta_s === undefined ? "" : duration(job.eta_s)))],
      ["Verdict", jobs.map((job) => job.verdict?.sentence ?? "")],
      ...[...finals].filter(([of]) => split(of).quantity !== "epoch").sort(([a], [b]) => a.localeCompare(b))
        .map(([of, known]) => [`last ${of}`, jobs.map((job) => number(known.get(job.id)?.value))]),
    ];
    fill(figures, table(head, rows.filter(([, cells]) => cells.some((cell) => cell !== ""))));
    const every = jobs.map(settingsOf);
    // A setting that only one of them has, since the others run something else, is no difference.
    const differ = [...new Set(every.flatMap((one) => [...one.keys()]))].sort().filter((path) => {
      const having = every.filter((one) => one.has(path));
      return having.length > 1 && new Set(having.map((one) => JSON.stringify(one.get(path)))).size > 1;
    });
    fill(settings, differ.length
      ? table(head.cloneNode(true), differ.map((path) => [path, every.map((one) => (one.has(path) ? leaf(one.get(path)) : "n/a"))]))
      : el("p", { class: "soft" }, "None of those that they share."));
  }

  async function showChooser() {
    const { jobs } = await get("/jobs?limit=50", ending);
    const boxes = jobs.map((job) => {
      const id = fresh("run");
      const box = el("input", { type: "checkbox", id, value: job.id });
      box.checked = ids.includes(job.id);
      return el("li", {}, box, el("label", { for: id }, job.name, " ", el("span", { class: "soft" }, `${kind(job)}, ${job.state}, ${moment(job.created)}`)));
    });
    const told = el("p", { class: "wrong", role: "alert" });
    const choose = (event) => {
      event.preventDefault();
      const chosen = [...event.target.querySelectorAll("input:checked")].map((box) => box.value);
      if (chosen.length < 2 || chosen.length > MOST) fill(told, `${chosen.length} chosen: choose 2 to ${MOST}.`);
      else go(`#/compare/${chosen.map(encodeURIComponent).join(",")}`);
    };
    fill(chooser, jobs.length < 2
      ? el("p", {}, "There are fewer than two jobs to compare.")
      : el("details", { open: ids.length < 2 }, el("summary", {}, ids.length < 2 ? "Choose jobs" : "Choose others"),
        el("form", { class: "stack", onsubmit: choose }, el("ul", { class: "choose" }, boxes), told, el("button", { type: "submit", class: "primary" }, "Compare"))));
  }

  return {
    title: "Compare",
    close() {
      ending.abort();
      stream?.stop();
      charts.close();
    },
  };
}

function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), children);
}

function table(head, rows) {
  return el("table", { class: "beside" }, head, el("tbody", {}, rows.map(([name, cells]) =>
    el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell) => el("td", { class: "figure" }, cell))))));
}
