// Which page is shown: the part of the address behind the # says so. One page at a time, each with its own ending.

import { comparePage } from "./compare.js";
import { el, fill } from "./dom.js";
import { jobPage } from "./job.js";
import { listPage } from "./list.js";
import { newPage } from "./new.js";

const main = document.getElementById("main");
let page = null;

function go(address) {
  if (location.hash === address) open();
  else location.hash = address;
}

function open() {
  const [path, search] = location.hash.slice(1).split("?");
  const [, first = "", second = ""] = path.split("/");
  const query = new URLSearchParams(search ?? "");
  const isFirst = page === null;
  page?.close();
  window.scrollTo(0, 0);
  if (first === "jobs" && second) page = jobPage(main, { id: decodeURIComponent(second), go });
  else if (first === "new") page = newPage(main, { query, go });
  else if (first === "compare") page = comparePage(main, { ids: second.split(",").filter(Boolean).map(decodeURIComponent), go });
  else if (first === "") page = listPage(main, { query, go });
  else {
    fill(main, el("h1", { tabindex: "-1" }, "There is no such page"), el("p", {}, el("a", { href: "#/" }, "To the jobs")));
    page = { title: "Nothing here", close() {} };
  }
  document.title = `${page.title}, Stoker`;
  for (const link of document.querySelectorAll("[data-page]")) {
    if (link.dataset.page === (first || "list")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  // A reader who follows a link is told of the page they came to.
  if (!isFirst) main.querySelector("h1")?.focus({ preventScroll: true });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", open);
open();
