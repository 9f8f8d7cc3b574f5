// One job: how far it is, its curves, where its steps go, GPU and memory, verdict and report, log, settings.

import { follow, get, pages, pause, post } from "./api.js";
import { actions } from "./actions.js";
import { badge, notice, progressBar, shareBar } from "./badge.js";
import { board, putPoint } from "./curves.js";
import { el, fill, say, write } from "./dom.js";
import { logPanel } from "./log.js";
import { askForPlaces } from "./places.js";
import { bytes, count, duration, ENDED, isKnown, kind, leaf, moment, percent, PHASES, ran, rate, settings, steps, took } from "./words.js";

export function jobPage(main, { id, go }) {
  const path = `/jobs/${encodeURIComponent(id)}`;
  const ending = new AbortController();
  const name = el("h1", { tabindex: "-1" }, "Job");
  const state = badge();
  const bar = progressBar();
  const trouble = el("div");
  const failure = el("p", { class: "notice", hidden: true });
  const waiting = el("p", { class: "soft", hidden: true });
  const facts = el("dl", { class: "facts" });
  const charts = board({ empty: "No points yet.", names: ["train", "valid", "epoch"] });
  const log = logPanel();
  const doing = actions({ begun: () => heard, changed: done, failed: (error) => fill(trouble, notice(error)) });
  const again = el("a", { class: "button", href: `#/new?from=${encodeURIComponent(id)}`, title: "A new job that begins with these settings" }, "Copy and edit");
  const parts = { verdict: verdictPart(), phases: phasesPart(), device: devicePart(), attempts: attemptsPart(), config: configPart() };
  const places = askForPlaces(async () => job?.state === "queued" && look());
  let job = null;
  // How often the stream has told the job: an answer that was asked for before the last time may be older.
  let heard = 0;
  let early = [];
  let loading = null;

  fill(main,
    el("div", { class: "title" }, name, state.node),
    el("div", { class: "between wraps" }, doing.node, again),
    trouble, places.node, failure, waiting, bar.node, facts,
    section("Verdict", parts.verdict.node),
    section("Curves", charts.node),
    el("div", { class: "two" }, section("Where the step goes", parts.phases.node), section("GPU and memory", parts.device.node)),
    section("Log", log.node),
    section("Attempts", parts.attempts.node),
    section("Settings", parts.config.node));

  const stream = follow(`${path}/stream`, {
    open: () => (loading ??= load()),
    state: (now) => {
      heard += 1;
      show(now);
    },
    point: (point) => putPoint(charts, point),
    line: (line) => (early ? early.push(line) : log.add([line])),
    deleted: () => fill(main, el("h1", { tabindex: "-1" }, "This job was deleted"), el("p", {}, el("a", { href: "#/" }, "To the other jobs"))),
    gone: (error) => fill(main, el("h1", { tabindex: "-1" }, error.status === 404 ? "There is no such job" : "This job cannot be shown"),
      notice(error), el("p", {}, el("a", { href: "#/" }, "To the jobs there are"))),
  });
  const ticking = setInterval(() => job && !ENDED.has(job.state) && showFacts(), 1000);

  /** What was there before the stream began; what both tell is joined by id. Asked for until it was told once. */
  async function load() {
    for (let wait = 500; !ending.signal.aborted; wait = Math.min(8000, 2 * wait)) {
      try {
        await look();
        log.add((await get(`${path}/logs?last=2000`, ending)).lines);
        log.add(early ?? []);
        early = null;
        for await (const page of pages(`${path}/metrics?limit=5000`, ending)) page.points.forEach((point) => putPoint(charts, point));
        charts.flush();
        if (wait > 500) fill(trouble);
        return;
      } catch (error) {
        if (ending.signal.aborted) return;
        fill(trouble, notice(error));
        if ([401, 403, 404].includes(error.status)) return;
      }
      await pause(wait, ending.signal);
    }
  }

  async function look() {
    const before = heard;
    showUnlessHeard(await get(path, ending), before);
  }

  function showUnlessHeard(now, before) {
    if (heard === before) show(now);
  }

  function show(now) {
    if (job && job.state !== now.state) say(`${now.name} is ${now.state}`);
    job = now;
    document.title = `${now.name}: ${now.state}, Stoker`;
    write(name, now.name);
    state.show(now);
    bar.show(now);
    doing.show(now);
    failure.hidden = !now.error;
    write(failure, now.error ?? "");
    waiting.hidden = !now.waits_for;
    write(waiting, now.waits_for ?? "");
    showFacts();
    for (const part of Object.values(parts)) part.show(now);
  }

  function showFacts() {
    const pairs = [
      [job.workload ? "Workload" : "Script", kind(job)],
      ["Step", steps(job)],
      ["Speed", rate(job.rate)],
      ENDED.has(job.state) ? ["Ended", moment(job.ended)] : ["Left", duration(job.eta_s)],
      ["Ran", ran(job)],
      ["Submitted", moment(job.created)],
    ];
    showPairs(facts, pairs);
  }

  function done(answer, what, before) {
    fill(trouble);
    if (what === "delete") go("#/");
    else if (what === "retry") go(`#/jobs/${encodeURIComponent(answer.id)}`);
    else showUnlessHeard(answer, before);
  }

  function verdictPart() {
    const sentence = el("p", { class: "sentence" });
    const told = el("p", { class: "soft", role: "status" });
    const run = el("button", { type: "button", onclick: examine, hidden: true }, "Run the doctor");
    const report = el("a", { class: "button", href: `/api/training${path}/report`, target: "_blank", rel: "noopener" }, "Open the report");
    async function examine() {
      run.disabled = true;
      try {
        await post(`${path}/doctor`);
        write(told, "The doctor is at work.");
      } catch (error) {
        write(told, error.message);
      }
      run.disabled = job.doctor === "running";
    }
    return {
      node: el("div", { class: "card" }, sentence, told, el("div", { class: "actions" }, run, report)),
      show({ verdict, doctor, report: isThere, state: at, attempts = [] }) {
        // A healthy run has nothing to cure; why it is called so can be read all the same.
        write(run, verdict?.cause === "healthy" ? "Show why it is healthy" : "Run the doctor");
        run.hidden = attempts.length === 0;
        write(sentence, verdict?.sentence ?? (ENDED.has(at) ? "No verdict: too few steps were observed." : "No verdict yet: it comes when enough steps were observed."));
        run.disabled = doctor === "running";
        if (doctor === "running") write(told, "The doctor is at work.");
        else if (typeof doctor === "string" && doctor.startsWith("failed")) write(told, `The doctor ${doctor}`);
        else if (doctor === "done") write(told, "");
        report.hidden = !isThere;
      },
    };
  }

  function phasesPart() {
    const strip = el("div", { class: "strip", role: "img", "aria-label": "phases" }, PHASES.map((phase) => el("div", { class: `phase ${phase}` })));
    const list = el("ul", { class: "legend" }, PHASES.map((phase) => el("li", {}, el("span", { class: `key phase ${phase}` }), el("span", {}, phase), " ", el("span", { class: "figure" }))));
    const none = el("p", { class: "soft" }, "Not measured yet.");
    const node = el("div", {}, none, strip, list);
    return {
      node,
      show({ phases }) {
        strip.hidden = list.hidden = !phases;
        none.hidden = Boolean(phases);
        if (!phases) return;
        PHASES.forEach((phase, at) => {
          strip.children[at].style.width = isKnown(phases[phase]) ? `${phases[phase] * 100}%` : "0";
          write(list.children[at].lastElementChild, percent(phases[phase]));
        });
        strip.setAttribute("aria-label", PHASES.map((phase) => `${phase} ${percent(phases[phase])}`).join(", "));
      },
    };
  }

  function devicePart() {
    const busy = shareBar("GPU busy");
    const vram = shareBar("GPU memory");
    const ram = shareBar("Memory");
    const about = el("p", { class: "soft" });
    return {
      node: el("div", {}, busy.node, vram.node, ram.node, about),
      show({ gpu, memory }) {
        busy.node.hidden = vram.node.hidden = !gpu;
        ram.node.hidden = !memory;
        if (gpu) {
          busy.show(isKnown(gpu.utilisation_percent) ? gpu.utilisation_percent / 100 : null);
          vram.show(part(gpu.used_bytes, gpu.total_bytes), of(gpu.used_bytes, gpu.total_bytes));
        }
        if (memory) ram.show(null, `${bytes(memory.rss_bytes)}, peak ${bytes(memory.peak_bytes)}`);
        write(about, [
          gpu ? `${gpu.name ?? `GPU ${gpu.index}`}.` : "No GPU is held, or it was not measured.",
          isKnown(memory?.device_peak_bytes) && `The training's own peak on the device: ${bytes(memory.device_peak_bytes)}.`,
        ].filter(Boolean).join(" "));
      },
    };
  }

  function attemptsPart() {
    const body = el("tbody");
    const node = el("table", { class: "stackable" },
      el("thead", {}, el("tr", {}, ["Attempt", "State", "Steps", "Began", "Took", "Told"].map((text) => el("th", { scope: "col" }, text)))), body);
    return {
      node,
      show({ attempts = [], state: now }) {
        fill(body, attempts.map((one, at) => el("tr", {},
          el("th", { scope: "row" }, String(one.number ?? at + 1)),
          cell("State", one.outcome ?? now),
          cell("Steps", `${count(one.first_step ?? 0)} to ${count(one.last_step)}`),
          cell("Began", moment(one.started ?? one.created)),
          cell("Took", took(one)),
          cell("Told", one.error ?? ""))));
        node.parentElement.hidden = attempts.length === 0;
      },
    };
  }

  function configPart() {
    const list = el("dl", { class: "settings" });
    let shown = "";
    return {
      node: el("details", {}, el("summary", {}, "All settings"), list),
      show(now) {
        if (now.id === shown) return;
        shown = now.id;
        fill(list, [...settings(now)].map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, leaf(value)))));
      },
    };
  }

  return {
    title: "Job",
    close() {
      ending.abort();
      stream.stop();
      places.stop();
      clearInterval(ticking);
      charts.close();
    },
  };
}

function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), children);
}

/** Terms with what they are; only what changed is written. */
function showPairs(list, pairs) {
  pairs.forEach(([term, text], at) => {
    const row = list.children[at] ?? list.appendChild(el("div", {}, el("dt"), el("dd", { class: "figure" })));
    write(row.firstElementChild, term);
    write(row.lastElementChild, text);
  });
}

function cell(name, text) {
  return el("td", { "data-name": name }, text);
}

function part(used, total) {
  return isKnown(used) && isKnown(total) && total > 0 ? used / total : null;
}

function of(used, total) {
  return isKnown(total) ? `${bytes(used)} of ${bytes(total)}` : bytes(used);
}
