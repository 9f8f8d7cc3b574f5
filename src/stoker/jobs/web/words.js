// Figures as words. What was not measured is "n/a".

const NONE = "n/a";

export const STATES = ["queued", "starting", "running", "saving", "done", "failed", "cancelled", "lost"];
export const ENDED = new Set(["done", "failed", "cancelled", "lost"]);
export const PHASES = ["wait", "copy", "forward", "backward", "update", "other"];

export function isKnown(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** 4 s, 3 min 20 s, 2 h 05 min, 3 d 4 h. */
export function duration(seconds) {
  if (!isKnown(seconds)) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** A moment in the reader's own zone; the day is left out today. */
export function moment(seconds) {
  if (!isKnown(seconds)) return NONE;
  const at = new Date(seconds * 1000);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

export function clock(seconds) {
  if (!isKnown(seconds)) return "";
  const at = new Date(seconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function bytes(value) {
  if (!isKnown(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${at === 0 || left >= 100 ? Math.round(left) : left.toFixed(1)} ${units[at]}`;
}

/** A share of 0 to 1 as per cent, with a decimal below ten. */
export function percent(share) {
  if (!isKnown(share)) return NONE;
  const value = share * 100;
  return `${value !== 0 && Math.abs(value) < 10 ? value.toFixed(1) : Math.round(value)}%`;
}

export function count(value) {
  return isKnown(value) ? Math.round(value).toLocaleString("en-GB") : NONE;
}

/** Four figures that count, without an exponent where there is none needed. */
export function number(value) {
  if (!isKnown(value)) return NONE;
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return count(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace(/\.?0+e/, "e");
  return size >= 1000 ? count(value) : String(Number(value.toPrecision(4)));
}

export function rate(value) {
  return isKnown(value) ? `${number(value)} samples/s` : NONE;
}

/** How far a job is, 0 to 1; null where its steps are not known. */
export function progress(job) {
  if (!isKnown(job.step) || !isKnown(job.steps) || job.steps <= 0) return null;
  return Math.min(1, job.step / job.steps);
}

export function steps(job) {
  if (!isKnown(job.step)) return NONE;
  return isKnown(job.steps) ? `${count(job.step)} of ${count(job.steps)}` : `${count(job.step)}`;
}

/** How long a job's attempts ran, or have run so far; the time between them is not counted. */
export function ran({ attempts }) {
  const begun = attempts.filter((one) => isKnown(one.started));
  return begun.length ? duration(begun.reduce((sum, one) => sum + lasted(one), 0)) : NONE;
}

/** How long one attempt took, or has taken so far. */
export function took(attempt) {
  return isKnown(attempt.started) ? duration(lasted(attempt)) : NONE;
}

function lasted({ started, ended }) {
  return Math.max(0, (isKnown(ended) ? ended : Date.now() / 1000) - started);
}

/** What a job runs: a workload, or a script as the server lists it; one that it does not, by its path's end. */
export function kind(job) {
  return job.workload ?? job.script_name ?? job.script.split("/").slice(-2).join("/");
}

/** What a job was told, by dotted path: a workload's config, or a script's arguments. */
export function settings(job) {
  return leaves(job.workload ? job.config : { arguments: job.arguments });
}

function leaves(config, above = "") {
  const found = new Map();
  for (const [name, value] of Object.entries(config ?? {})) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [path, leaf] of leaves(value, `${above}${name}.`)) found.set(path, leaf);
    } else {
      found.set(`${above}${name}`, value);
    }
  }
  return found;
}

/** A leaf of a config as it is typed. */
export function leaf(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function two(value) {
  return String(value).padStart(2, "0");
}
