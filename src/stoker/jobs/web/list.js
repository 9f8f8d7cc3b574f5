// The jobs, newest first, with their progress as it goes.

import { follow, get } from "./api.js";
import { badge, notice, progressBar } from "./badge.js";
import { MOST } from "./compare.js";
import { el, fill, say, write } from "./dom.js";
import { askForPlaces } from "./places.js";
import { duration, ENDED, kind, moment, rate, ran, STATES, steps } from "./words.js";

const PAGE = 50;
// Those to compare, kept while other pages are looked at.
const chosen = new Set();

export function listPage(main, { query, go }) {
  const rows = new Map();
  const filters = { state: query.get("state") ?? "", workload: query.get("workload") ?? "", name: query.get("name") ?? "" };
  let next = null;
  // What the stream said while a page was on its way: it is newer than the page.
  let isLoading = true;
  let meanwhile = [];
  // Whom the stream told of while places were asked for: that is newer too.
  const heard = new Set();

  const body = el("tbody");
  const table = el("table", { class: "jobs" },
    el("caption", { class: "unseen" }, "Jobs, newest first"),
    el("thead", {}, el("tr", {},
      ["Compare", "Job", "State", "Progress", "Speed and time", "Verdict"].map((name, at) =>
        el("th", { scope: "col" }, at === 0 ? el("span", { class: "unseen" }, name) : name)))),
    body);
  const empty = el("div", { class: "empty", hidden: true });
  const trouble = el("div");
  const older = el("button", { type: "button", hidden: true, onclick: () => load(next) }, "Older jobs");
  const compare = el("button", { type: "button", class: "primary", onclick: () => go(`#/compare/${[...chosen].map(encodeURIComponent).join(",")}`) });
  const clear = el("button", { type: "button", onclick: unchoose }, "Clear");
  const bar = el("div", { class: "choice", role: "region", "aria-label": "Chosen jobs", hidden: true }, compare, clear);
  const workloads = el("select", { id: "by-workload" }, el("option", { value: "" }, "all"));

  const places = askForPlaces(moveUp);
  fill(main, el("h1", { tabindex: "-1" }, "Jobs"), filterForm(), trouble, places.node, table, empty, older, bar);
  loadWorkloads();
  const stream = follow("/stream", {
    open: (isFirst) => isFirst && load(null, oldest()),
    state: (job) => (isLoading ? meanwhile.push(job) : changed(job)),
    deleted: ({ id }) => remove(id),
    gone: (error) => fill(trouble, notice(error)),
  });
  // Times that run on without word from the server.
  const ticking = setInterval(() => rows.forEach((row) => ENDED.has(row.job.state) || row.tick()), 1000);
  showChoice();

  function filterForm() {
    const state = el("select", { id: "by-state" }, el("option", { value: "" }, "all"), STATES.map((name) => el("option", { value: name }, name)));
    const name = el("input", { id: "by-name", type: "search", placeholder: "part of a name", autocomplete: "off" });
    state.value = filters.state;
    name.value = filters.name;
    const form = el("form", { class: "filters", role: "search", "aria-label": "Filter jobs", onsubmit: (event) => { event.preventDefault(); apply(); } },
      el("label", { for: "by-state" }, "State"), state,
      el("label", { for: "by-workload" }, "Workload"), workloads,
      el("label", { for: "by-name" }, "Name"), name);
    const apply = () => {
      const asked = new URLSearchParams();
      for (const [key, value] of [["state", state.value], ["workload", workloads.value], ["name", name.value.trim()]]) {
        filters[key] = value;
        if (value) asked.set(key, value);
      }
      history.replaceState(null, "", asked.size ? `#/?${asked}` : "#/");
      load(null);
    };
    let typing = 0;
    state.addEventListener("change", apply);
    workloads.addEventListener("change", apply);
    name.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(apply, 250); });
    return form;
  }

  async function loadWorkloads() {
    try {
      const told = await get("/workloads");
      workloads.append(...told.workloads.map(({ name }) => el("option", { value: name }, name)));
      workloads.value = filters.workload;
    } catch (error) {
      fill(trouble, notice(error));
    }
  }

  let asked = 0;
  /** Those before a number, as many pages as lead to `until`; the newest take the place of all that were there. */
  async function load(before, until = Infinity) {
    asked += 1;
    const mine = asked;
    isLoading = true;
    try {
      const jobs = [];
      let at = before;
      do {
        const page = await get(`/jobs?${parameters({ limit: PAGE, before: at })}`);
        if (mine !== asked) return;
        jobs.push(...page.jobs);
        at = page.next ?? null;
      } while (at !== null && at > until);
      if (before === null) {
        const there = new Set(jobs.map((job) => job.id));
        for (const id of rows.keys()) if (!there.has(id)) drop(id);
      }
      for (const job of jobs) put(job);
      next = at;
      older.hidden = next === null;
      fill(trouble);
      showEmpty();
    } catch (error) {
      if (mine === asked) fill(trouble, notice(error));
    }
    if (mine !== asked) return;
    isLoading = false;
    const told = meanwhile;
    meanwhile = [];
    told.forEach(changed);
  }

  function parameters(others) {
    const given = new URLSearchParams();
    for (const [name, value] of Object.entries({ ...filters, ...others })) if (value) given.set(name, value);
    return given;
  }

  /** The number of the last row; what was asked for once stays when the list is read anew. */
  function oldest() {
    return Math.min(...[...rows.values()].map((row) => row.job.number));
  }

  function changed(job) {
    heard.add(job.id);
    const row = rows.get(job.id);
    if (!row && !matches(job)) return;
    if (row && row.job.state !== job.state) {
      say(`${job.name} is ${job.state}`);
      if (row.job.state === "queued") places.soon();
    }
    if (!row && next !== null && isOlder(job)) return;
    if (row && !matches(job)) drop(job.id);
    else put(job);
    showEmpty();
  }

  /** Places of the queued jobs that are shown. Whoever is queued no longer, the stream tells. */
  async function moveUp() {
    const shown = [...rows.values()].map((row) => row.job);
    const numbers = shown.filter((job) => job.state === "queued").map((job) => job.number);
    const mine = asked;
    heard.clear();
    for (let at = Math.max(...numbers) + 1; at !== null && at > Math.min(...numbers);) {
      const page = await get(`/jobs?${parameters({ state: "queued", limit: 200, before: at })}`);
      // Another list is shown by now, or is on its way.
      if (mine !== asked) return;
      for (const job of page.jobs) if (!heard.has(job.id)) rows.get(job.id)?.show(job);
      at = page.next ?? null;
    }
  }

  function matches(job) {
    return (!filters.state || job.state === filters.state)
      && (!filters.workload || job.workload === filters.workload)
      && (!filters.name || job.name.toLowerCase().includes(filters.name.toLowerCase()));
  }

  function isOlder(job) {
    return [...rows.values()].every((row) => row.job.created > job.created);
  }

  function put(job) {
    let row = rows.get(job.id);
    if (!row) {
      row = makeRow(job);
      rows.set(job.id, row);
      const after = [...body.children].find((node) => Number(node.dataset.created) < job.created);
      body.insertBefore(row.node, after ?? null);
    }
    row.show(job);
  }

  function drop(id) {
    rows.get(id)?.node.remove();
    rows.delete(id);
  }

  function remove(id) {
    chosen.delete(id);
    drop(id);
    showEmpty();
    showChoice();
  }

  function makeRow(job) {
    const box = el("input", { type: "checkbox", "aria-label": `compare ${job.name}`, onchange: () => { box.checked ? chosen.add(job.id) : chosen.delete(job.id); showChoice(); } });
    box.checked = chosen.has(job.id);
    const link = el("a", { href: `#/jobs/${encodeURIComponent(job.id)}` });
    const about = el("span", { class: "soft" });
    const state = badge();
    const bar = progressBar();
    const count = el("span", { class: "soft figure" });
    const speed = el("span", { class: "figure" });
    const time = el("span", { class: "soft figure" });
    const verdict = el("span");
    const node = el("tr", { "data-created": String(job.created) },
      el("td", { class: "box" }, box),
      el("th", { scope: "row" }, link, el("br"), about),
      el("td", { class: "state" }, state.node),
      el("td", { class: "long" }, bar.node, count),
      el("td", { class: "pace" }, speed, time),
      el("td", { class: "verdict" }, verdict));
    const row = {
      node,
      job,
      show(now) {
        row.job = now;
        write(link, now.name);
        write(about, `${kind(now)}, ${moment(now.created)}`);
        state.show(now);
        bar.show(now);
        write(count, now.steps ? steps(now) : "");
        write(speed, now.started ? rate(now.rate) : "");
        write(verdict, now.error ?? now.waits_for ?? now.verdict?.sentence ?? "");
        node.classList.toggle("failed", Boolean(now.error));
        row.tick();
      },
      tick() {
        const now = row.job;
        const left = ENDED.has(now.state) || now.eta_s === null || now.eta_s === undefined ? "" : `, ${duration(now.eta_s)} left`;
        write(time, now.started ? `${ran(now)}${left}` : "");
      },
    };
    return row;
  }

  function unchoose() {
    chosen.clear();
    for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = false;
    showChoice();
  }

  function showChoice() {
    bar.hidden = chosen.size === 0;
    compare.disabled = chosen.size < 2 || chosen.size > MOST;
    if (chosen.size > MOST) write(compare, `${chosen.size} chosen: compare ${MOST} at most`);
    else write(compare, chosen.size < 2 ? "Choose another to compare" : `Compare ${chosen.size} jobs`);
  }

  function showEmpty() {
    const isFiltered = Object.values(filters).some(Boolean);
    empty.hidden = rows.size > 0;
    table.hidden = rows.size === 0;
    if (rows.size === 0) {
      fill(empty, isFiltered
        ? el("p", {}, "No job matches these filters.")
        : [el("p", {}, "There are no jobs yet."), el("p", {}, el("a", { href: "#/new", class: "button primary" }, "Submit the first one"))]);
    }
  }

  return {
    title: "Jobs",
    close() {
      stream.stop();
      places.stop();
      clearInterval(ticking);
      asked += 1;
    },
  };
}
