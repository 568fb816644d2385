// Draws every figure of the class "plot", sorts tables, and follows the list of contents.

const KINDS = { curves, paths, frames };
for (const figure of document.querySelectorAll("figure.plot")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  Promise.resolve()
    .then(() => KINDS[figure.dataset.kind](figure, data))
    .catch((error) => add(figure, "p", {}, `This plot cannot be drawn: ${error.message}`));
}

// A number at the beginning of a cell, else the text; what is missing comes last.
const keyOf = (text) => {
  const found = text.replaceAll("−", "-").replaceAll(",", "").match(/^[>≤<\s]*(-?\d[\d.]*(e[-+]?\d+)?)/i);
  return found ? Number(found[1]) : text === "–" || text === "" ? null : text;
};

const compareKeys = (a, b) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return typeof a === typeof b ? a.localeCompare(b) : typeof a === "number" ? -1 : 1;
};

for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  if (body.rows.length < 2) continue;
  heads.forEach((head, column) => {
    const text = head.textContent;
    head.textContent = "";
    button(head, text || "name", null, () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [keyOf(row.cells[column].textContent.trim()), row]);
      const missing = (key) => key === null;
      rows.sort(([a], [b]) => (missing(a) || missing(b) ? 1 : sign) * compareKeys(a, b));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// A link opens the section that it leads to; the entry of the section in view is marked.
const openTarget = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target?.scrollIntoView();
};
addEventListener("hashchange", openTarget);
if (location.hash) openTarget();

const links = new Map();
for (const link of document.querySelectorAll("nav a")) {
  links.set(document.getElementById(link.hash.slice(1)), link);
}
const mark = () => {
  const room = document.documentElement.scrollHeight - innerHeight;
  const line = 120 + (innerHeight - 120) * (scrollY / Math.max(room, 1)); // sinks to the last ones
  const above = [...links.keys()].filter((part) => part.getBoundingClientRect().top < line);
  for (const link of links.values()) link.removeAttribute("aria-current");
  (links.get(above.at(-1)) ?? [...links.values()][0])?.setAttribute("aria-current", "true");
};
addEventListener("scroll", mark, { passive: true });
mark();
