// Places in the queue: a job's move up when others leave, of which no stream says a word. They are asked for.

import { Refused } from "./api.js";
import { notice } from "./badge.js";
import { el, fill, write } from "./dom.js";

const EVERY_MS = 5000;
const SOON_MS = 500;

/** Have `ask` ask for places now and then while the page is seen, and `soon()`; `node` tells of a failure. */
export function askForPlaces(ask) {
  const node = el("div");
  const ticking = setInterval(again, EVERY_MS);
  let isAsking = false;
  let isStopped = false;
  let waiting = 0;

  async function again() {
    if (isAsking || document.hidden) return;
    isAsking = true;
    try {
      await ask();
      fill(node);
    } catch (error) {
      if (!isStopped) tell(error);
    } finally {
      isAsking = false;
    }
  }

  function tell(error) {
    if (!(error instanceof Refused)) throw error;
    const told = `Places in the queue may be old: ${error.message}`;
    // Once, however often it fails: a screen reader reads it out when it comes.
    if (node.firstChild) write(node.firstChild, told);
    else fill(node, notice(new Error(told)));
  }

  return {
    node,
    soon() {
      clearTimeout(waiting);
      waiting = setTimeout(again, SOON_MS);
    },
    stop() {
      isStopped = true;
      clearInterval(ticking);
      clearTimeout(waiting);
    },
  };
}
