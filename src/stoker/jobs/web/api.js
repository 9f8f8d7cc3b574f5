// The server: requests with clear refusals, streams that resume where they broke off.

import { askFor, el, fresh } from "./dom.js";

const BASE = "/api/training";
// A server that has nothing to tell says so every 15 s; one that left out three of them is gone.
const SILENCE_MS = 45_000;

/** What the server refused, or that it did not answer (status 0); `fields` are those of a 422. */
export class Refused extends Error {
  constructor(status, message, fields = []) {
    super(message);
    this.status = status;
    this.fields = fields;
  }
}

/** A request; its JSON, or null where there is none. A token is asked for where one is needed. */
export async function ask(method, path, { body, headers = {}, signal } = {}) {
  const answer = await send(method, path, { body, headers, signal });
  return answer.status === 204 ? null : answer.json();
}

export const get = (path, options) => ask("GET", path, options);
export const post = (path, body = {}, options = {}) => ask("POST", path, { ...options, body });

/** The pages of a list behind an id, one by one, until there is no more. `path` has a query already. */
export async function* pages(path, { signal, after = 0 } = {}) {
  let at = after;
  while (at !== null) {
    const page = await get(`${path}&after=${at}`, { signal });
    yield page;
    at = page.next ?? null;
  }
}

/**
 * Follow a stream until `stop()`. `on` has a listener for each kind of event, and may have `open` (called at every
 * connection, with true at the first) and `gone` (there is nothing to follow, or nobody may).
 * A connection on which nothing comes, as after a laptop's sleep, is given up for a new one.
 * A hidden tab lets go of its connection (a browser has six for all tabs) and goes on from the last id when it is seen.
 */
export function follow(path, on) {
  const ending = new AbortController();
  let last = null;
  let connection = null;
  let tries = 0;

  async function once() {
    connection = new AbortController();
    const silence = watch(connection);
    const headers = { Accept: "text/event-stream", ...(last === null ? {} : { "Last-Event-ID": last }) };
    try {
      const signal = AbortSignal.any([ending.signal, connection.signal]);
      const answer = await send("GET", path, { headers, signal });
      show("live");
      tries = 0;
      on.open?.(last === null);
      for await (const event of events(answer.body, silence.broken)) {
        if (event.id !== null) last = event.id;
        on[event.kind]?.(JSON.parse(event.data));
      }
    } finally {
      silence.end();
    }
  }

  async function run() {
    while (!ending.signal.aborted) {
      await seen(ending.signal);
      try {
        await once();
      } catch (error) {
        if (ending.signal.aborted) return;
        if (error instanceof Refused && [401, 403, 404].includes(error.status)) {
          show("");
          on.gone?.(error);
          return;
        }
        if (!(error instanceof Refused || error.name === "AbortError" || error.name === "TypeError")) throw error;
      }
      if (ending.signal.aborted) return;
      if (document.hidden) continue;
      show("reconnecting");
      await pause(Math.min(8000, 500 * 2 ** tries) * (0.75 + Math.random() / 2), ending.signal);
      tries += 1;
    }
  }

  const hide = () => document.hidden && connection?.abort();
  document.addEventListener("visibilitychange", hide);
  run();
  return {
    stop() {
      document.removeEventListener("visibilitychange", hide);
      ending.abort();
      show("");
    },
  };
}

/** A key that makes a request safe to send twice. */
export function idempotencyKey() {
  const drawn = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(drawn, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function send(method, path, { body, headers, signal }, isRetry = false) {
  let answer;
  try {
    answer = await fetch(BASE + path, {
      method,
      headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. Is `stoker serve` still running?");
  }
  if (answer.ok) return answer;
  if (answer.status !== 401) throw await refusal(answer);
  if (!isRetry && (await signIn())) return send(method, path, { body, headers, signal }, true);
  throw new Refused(401, "This server needs a token. Load the page again to give it.");
}

async function refusal(answer) {
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // Not JSON, as from a proxy in between: the status alone is told.
  }
  const fields = Array.isArray(told.errors) ? told.errors : [];
  const detail = typeof told.detail === "string" ? told.detail : fields.map((one) => `${one.field}: ${one.message}`).join("; ");
  return new Refused(answer.status, detail || `The server answered ${answer.status} ${answer.statusText}`.trim(), fields);
}

let signingIn = null;

/** Ask for the token, once however many requests need it. */
function signIn() {
  signingIn ??= askForToken().finally(() => {
    signingIn = null;
  });
  return signingIn;
}

async function askForToken() {
  let wrong = false;
  for (;;) {
    const id = fresh("token");
    const input = el("input", { id, type: "password", required: true, autocomplete: "current-password", "aria-describedby": `${id}-hint` });
    const token = await askFor({
      title: "This server needs a token",
      body: [
        el("label", { for: id }, "Token"),
        input,
        el("p", { id: `${id}-hint`, class: wrong ? "wrong" : "soft", role: wrong ? "alert" : null },
          wrong ? "That is not its token." : "Whoever started it with `stoker serve` has it."),
      ],
      agree: "Go on",
      read: () => input.value,
    });
    if (token === null) return false;
    const answer = await fetch(`${BASE}/session`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (answer.ok) return true;
    if (answer.status !== 401) throw await refusal(answer);
    wrong = true;
  }
}

/** Abort a connection on which nothing came for too long; whoever is asked for a token has time. */
function watch(connection) {
  let timer = 0;
  const broken = () => {
    clearTimeout(timer);
    timer = setTimeout(() => (signingIn === null ? connection.abort() : broken()), SILENCE_MS);
  };
  broken();
  return { broken, end: () => clearTimeout(timer) };
}

/** The events of a stream's body, as they come: {kind, id, data}; `came()` for whatever comes, comments too. */
async function* events(body, came) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = { kind: "message", id: null, data: [] };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    came();
    const lines = (rest + value).split(/\r\n|\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data.length) yield { ...event, data: event.data.join("\n") };
        event = { kind: "message", id: null, data: [] };
        continue;
      }
      const [, name, text] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
      if (name === "event") event.kind = text;
      else if (name === "id") event.id = text;
      else if (name === "data") event.data.push(text ?? "");
    }
  }
}

function show(state) {
  const node = document.getElementById("connection");
  if (node.dataset.state === state) return;
  node.dataset.state = state;
  node.textContent = { live: "live", reconnecting: "connection lost, trying again" }[state] ?? "";
}

function seen(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}

/** So long, or until the signal. */
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
