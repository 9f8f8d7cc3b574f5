// Curves by absolute step, drawn by uPlot: one chart for each quantity, a line for each kind or run.

import { el, fresh, write } from "./dom.js";
import { count, number } from "./words.js";

const LINES = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
const HEIGHT = 220;
// Redrawn at most this often, however fast points come.
const PAUSE_MS = 500;

/** One curve: values by rising steps. A step that comes again, after a resume, takes the place of the older one. */
export class Curve {
  steps = [];
  values = [];
  #ids = [];

  add({ id, step, value }) {
    const { steps, values } = this;
    let at = steps.length;
    if (at && step <= steps[at - 1]) {
      let low = 0;
      while (low < at) {
        const middle = (low + at) >> 1;
        if (steps[middle] < step) low = middle + 1;
        else at = middle;
      }
      if (steps[at] === step) {
        if (id >= this.#ids[at]) [values[at], this.#ids[at]] = [value, id];
        return;
      }
    }
    steps.splice(at, 0, step);
    values.splice(at, 0, value);
    this.#ids.splice(at, 0, id);
  }

  /** The newest value that there is, with its step; null without one. */
  last() {
    for (let at = this.steps.length - 1; at >= 0; at -= 1) {
      if (this.values[at] !== null) return { step: this.steps[at], value: this.values[at] };
    }
    return null;
  }
}

/** "valid/loss" is the quantity loss of the kind valid. */
export function split(name) {
  const at = name.lastIndexOf("/");
  return { kind: at < 0 ? "" : name.slice(0, at), quantity: name.slice(at + 1) };
}

/**
 * A board of charts. `put(quantity, line, point)` adds to one; charts and lines are made as they come. Lines that are
 * named beforehand have the same colour in every chart.
 */
export function board({ empty, names = [] }) {
  const charts = new Map();
  const grid = el("div", { class: "charts" });
  const moreGrid = el("div", { class: "charts" });
  const more = el("details", { class: "more", hidden: true }, el("summary", {}, "More curves"), moreGrid);
  const nothing = el("p", { class: "soft" }, empty);
  const isLog = el("input", { type: "checkbox", id: fresh("log") });
  const tools = el("div", { class: "tools", hidden: true }, isLog, el("label", { for: isLog.id }, "Logarithmic"), el("span", { class: "soft" }, "By step. Drag to look closer, double-click to go back."));
  const node = el("div", {}, tools, nothing, grid, more);
  let timer = 0;

  isLog.addEventListener("change", () => charts.forEach((chart) => chart.rebuild(isLog.checked)));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const repaint = () => charts.forEach((chart) => chart.rebuild(isLog.checked));
  dark.addEventListener("change", repaint);

  function draw() {
    timer = 0;
    charts.forEach((chart) => chart.draw(isLog.checked));
  }

  return {
    node,
    put(quantity, line, point) {
      let chart = charts.get(quantity);
      if (!chart) {
        chart = makeChart(quantity, names);
        charts.set(quantity, chart);
        const into = isAside(quantity) ? moreGrid : grid;
        const beside = [...charts.keys()].filter((one) => isAside(one) === isAside(quantity)).sort(byInterest);
        into.insertBefore(chart.node, charts.get(beside[beside.indexOf(quantity) + 1])?.node ?? null);
        more.hidden &&= !isAside(quantity);
        nothing.hidden = true;
        tools.hidden = false;
      }
      chart.add(line, point);
      timer ||= setTimeout(draw, PAUSE_MS);
    },
    /** Draw what came, now. */
    flush() {
      clearTimeout(timer);
      draw();
    },
    close() {
      clearTimeout(timer);
      dark.removeEventListener("change", repaint);
      charts.forEach((chart) => chart.close());
    },
  };
}

/** Losses first, the rest by name. */
function byInterest(a, b) {
  const rank = (name) => (name === "loss" ? 0 : name.includes("loss") ? 1 : 2);
  return rank(a) - rank(b) || a.localeCompare(b);
}

/** Whether a quantity is of how it is trained, not of what is learnt. */
export function isAside(quantity) {
  return /^(lr|gradient|micro_batch|samples_per_second|.*seconds|.*_s|.*bytes)( \(.*\))?$/.test(quantity);
}

function makeChart(quantity, names) {
  const lines = new Map();
  const heading = fresh("chart");
  const place = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": `Curves of ${quantity}`, "aria-describedby": heading });
  const legend = el("ul", { class: "legend" });
  const at = el("span", { class: "soft figure" });
  const node = el("figure", { class: "chart" },
    el("figcaption", { id: heading, class: "between" }, el("b", {}, quantity), at), place, legend);
  let plot = null;
  let isDirty = false;
  // The step that keys went to; a pointer has its own place on the screen.
  let walkedTo = null;
  const watching = new ResizeObserver(() => plot && plot.width !== place.clientWidth && plot.setSize({ width: place.clientWidth, height: HEIGHT }));
  watching.observe(place);
  place.addEventListener("keydown", walk);
  place.addEventListener("pointermove", () => { walkedTo = null; });

  function add(name, point) {
    let line = lines.get(name);
    if (!line) {
      const figure = el("b", { class: "figure" });
      const place = names.includes(name) ? names.indexOf(name) : lines.size;
      line = { curve: new Curve(), figure, colour: LINES[place % LINES.length] };
      const entry = el("li", {}, colourKey(place), el("span", {}, name), " ", figure);
      entry.style.order = place;
      legend.append(entry);
      lines.set(name, line);
      forget();
    }
    line.curve.add(point);
    isDirty = true;
  }

  function forget() {
    plot?.destroy();
    plot = null;
  }

  function rows() {
    const curves = [...lines.values()].map((line) => line.curve);
    // Of its own: what is drawn must not grow behind uPlot's back.
    if (curves.length === 1) return [[...curves[0].steps], [...curves[0].values]];
    return uPlot.join(curves.map((curve) => [curve.steps, curve.values]));
  }

  function draw(isLog) {
    if (!isDirty && plot) return;
    isDirty = false;
    const data = rows();
    if (plot) renew(data);
    else plot = new uPlot(options(isLog), data, place);
    tell(plot.cursor.idx);
    place.setAttribute("aria-label", `Curves of ${quantity}. ${[...lines].map(([name, { curve }]) => {
      const last = curve.last();
      return last ? `${name}: ${number(last.value)} at step ${count(last.step)}` : `${name}: no values`;
    }).join(". ")}. Left and right go along the steps.`);
  }

  /** New points; what the reader has drawn the view up to stays as it is. */
  function renew(data) {
    const [steps] = plot.data;
    const { min, max } = plot.scales.x;
    const isWhole = steps.length < 2 || (min <= steps[0] && max >= steps[steps.length - 1]);
    plot.setData(data, isWhole);
    if (!isWhole) plot.redraw();
    // uPlot scales the new points in a task of its own, before this one.
    if (walkedTo !== null) queueMicrotask(() => plot && pointAt(walkedTo));
  }

  function options(isLog) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const positive = [...lines.values()].every(({ curve }) => curve.values.every((value) => value === null || value > 0));
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), size: 4 }, font: "12px system-ui, sans-serif" };
    return {
      width: Math.max(place.clientWidth, 120),
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { distr: isLog && positive ? 3 : 1 } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(count), space: 60, size: 30 },
        { ...axis, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))), size: (_, texts) => 14 + 7 * Math.max(0, ...(texts ?? []).map((text) => text.length)) },
      ],
      series: [{}, ...[...lines].map(([name, line]) => ({
        label: name, stroke: colour(line.colour), width: 1.5, spanGaps: true, points: { show: (u, index) => sparse(u, index) },
      }))],
      hooks: { setCursor: [(u) => tell(u.cursor.idx)] },
    };
  }

  /** Show the values at a place of the cursor, or the newest ones. */
  function tell(index) {
    const step = index === null || index === undefined || !plot ? null : plot.data[0][index];
    write(at, step === null ? "" : `step ${count(step)}`);
    [...lines.values()].forEach((line, number_) => {
      const value = step === null ? line.curve.last()?.value : near(plot.data[number_ + 1], index);
      write(line.figure, number(value));
    });
  }

  function walk(event) {
    if (!plot) return;
    const last = plot.data[0].length - 1;
    const now = plot.cursor.idx;
    const wanted = { ArrowLeft: (now ?? last + 1) - 1, ArrowRight: (now ?? -1) + 1, Home: 0, End: last }[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    walkedTo = plot.data[0][Math.max(0, Math.min(last, wanted))];
    pointAt(walkedTo);
  }

  function pointAt(step) {
    plot.setCursor({ left: plot.valToPos(step, "x"), top: 10 });
  }

  return {
    node,
    add,
    draw,
    rebuild(isLog) {
      forget();
      draw(isLog);
    },
    close() {
      watching.disconnect();
      forget();
    },
  };
}

/** A patch of the colour of a line. */
export function colourKey(place) {
  const key = el("span", { class: "key" });
  key.style.background = `var(${LINES[place % LINES.length]})`;
  return key;
}

/** Points are marked where they are few: a line of one point would not be seen. */
function sparse(u, index) {
  let values = 0;
  for (const value of u.data[index]) if (value !== null && value !== undefined) values += 1;
  return values <= 25;
}

/** The value at an index, or the last one before it. */
function near(values, index) {
  for (let at = index; at >= 0; at -= 1) if (values[at] !== null && values[at] !== undefined) return values[at];
  return null;
}

/** Put every point of a page of metrics on a board, a line for each kind. */
export function putPoint(charts, point) {
  const { kind, quantity } = split(point.name);
  // The epoch is a step by another name.
  if (quantity !== "epoch") charts.put(quantity, kind || quantity, point);
}

