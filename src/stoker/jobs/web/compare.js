// Several jobs beside each other: their curves in one chart, their figures, and the settings in which they differ.

import { follow, get, pages } from "./api.js";
import { badge, notice } from "./badge.js";
import { board, colourKey, isAside, split } from "./curves.js";
import { el, fill, fresh, write } from "./dom.js";
import { askForPlaces } from "./places.js";
import { duration, kind, leaf, moment, number, ran, rate, settings as settingsOf, steps } from "./words.js";

export const MOST = 6;

export function comparePage(main, { ids: asked, go }) {
  const ids = [...new Set(asked)].slice(0, MOST);
  const left = new Set(asked).size - ids.length;
  const ending = new AbortController();
  const trouble = el("div");
  const runs = new Map();
  const finals = new Map();
  const labels = [];
  const charts = board({ empty: "No points yet.", names: labels });
  const same = el("p", { class: "soft" }, "None of those that they share.");
  const chooser = el("div");
  const places = askForPlaces(moveUp);
  let figures = null;
  let settings = null;
  let stream = null;

  const most = el("p", { class: "notice", hidden: left === 0 },
    `Of ${ids.length + left} jobs the first ${MOST} are shown: more cannot be told apart.`);
  fill(main, el("h1", { tabindex: "-1" }, "Compare"), trouble, places.node, most, chooser);
  start();

  async function start() {
    try {
      await showChooser();
      if (ids.length < 2) return;
      for (const id of ids) {
        const job = await get(`/jobs/${encodeURIComponent(id)}`, ending);
        runs.set(id, { job, last: 0, busy: false, heard: 0, badge: badge() });
      }
      name();
      figures = beside([...runs.values()], true);
      settings = beside([...runs.values()], false);
      main.append(
        section("Figures", el("div", { class: "wide" }, figures.node)),
        section("Settings that differ", same, el("div", { class: "wide" }, settings.node)),
        section("Curves", charts.node));
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
          // The epoch is a step by another name.
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
    run.heard += 1;
    show();
    load(run);
  }

  async function moveUp() {
    for (const run of runs.values()) {
      if (run.job.state !== "queued") continue;
      const { heard } = run;
      const now = await get(`/jobs/${encodeURIComponent(run.job.id)}`, ending);
      // What the stream told meanwhile is newer.
      if (run.heard === heard) run.job = now;
      run.badge.show(run.job);
    }
  }

  function show() {
    const jobs = [...runs.values()].map((run) => run.job);
    runs.forEach((run) => run.badge.show(run.job));
    const rows = [
      ["Runs", jobs.map(kind)],
      ["Submitted", jobs.map((job) => moment(job.created))],
      ["Step", jobs.map(steps)],
      ["Speed", jobs.map((job) => rate(job.rate))],
      ["Ran", jobs.map(ran)],
      ["Left", jobs.map((job) => (job.eta_s === null ? "" : duration(job.eta_s)))],
      ["Verdict", jobs.map((job) => job.verdict?.sentence ?? "")],
      ...[...finals].filter(([of]) => !isAside(split(of).quantity)).sort(([a], [b]) => a.localeCompare(b))
        .map(([of, known]) => [`last ${of}`, jobs.map((job) => number(known.get(job.id)?.value))]),
    ];
    figures.show(rows.filter(([, cells]) => cells.some(Boolean)));
    const every = jobs.map(settingsOf);
    // A setting that only one of them has, since the others run something else, is no difference.
    const differ = [...new Set(every.flatMap((one) => [...one.keys()]))].sort().filter((path) => {
      const having = every.filter((one) => one.has(path));
      return having.length > 1 && new Set(having.map((one) => JSON.stringify(one.get(path)))).size > 1;
    });
    settings.show(differ.map((path) => [path, every.map((one) => (one.has(path) ? leaf(one.get(path)) : "n/a"))]));
    settings.node.hidden = differ.length === 0;
    same.hidden = differ.length > 0;
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
      places.stop();
      charts.close();
    },
  };
}

function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), children);
}

/** A table of runs whose rows stay where they are as figures change, so that what is looked at stays too. */
function beside(runs, hasStates) {
  const rows = new Map();
  const body = el("tbody");
  const head = runs.map((run, at) => el("th", { scope: "col" }, colourKey(at),
    el("a", { href: `#/jobs/${encodeURIComponent(run.job.id)}` }, run.label), hasStates ? [el("br"), run.badge.node] : null));
  return {
    node: el("table", { class: "beside" }, el("thead", {}, el("tr", {}, el("td"), head)), body),
    show(told) {
      for (const [name, texts] of told) {
        if (!rows.has(name)) rows.set(name, el("tr", {}, el("th", { scope: "row" }, name), texts.map(() => el("td", { class: "figure" }))));
        texts.forEach((text, at) => write(rows.get(name).children[at + 1], text));
      }
      const wanted = told.map(([name]) => rows.get(name));
      if (wanted.length !== body.childElementCount || wanted.some((row, at) => row !== body.children[at])) fill(body, wanted);
    },
  };
}
