"use strict";
/* DataTables (tables.js) makes every table sort, filter, hide columns and give the rows that are seen as CSV. Without a script the
   tables stand as they are. */
document.documentElement.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
const asked = new URLSearchParams(location.search).get("q"), found = document.getElementById("search-table");
if (asked && found) { // a heading with the words stands before a page's title with them, and that before a text
  const words = asked.toLowerCase().split(/\s+/), has = (cell) => words.every((word) => cell.textContent.toLowerCase().includes(word));
  const rank = (row) => { const at = [...row.cells].findIndex(has); return at < 0 ? row.cells.length : at; };
  found.tBodies[0].append(...[...found.tBodies[0].rows].sort((one, other) => rank(one) - rank(other)));
}
document.querySelectorAll(".table > table[id]").forEach((table) => {
  const region = table.parentElement, few = table.tBodies[0].rows.length < 4;
  const buttons = [{ extend: "colvis", text: "Columns" }, { extend: "csvHtml5", filename: table.id }];
  const made = new DataTable(table, {
    paging: false, info: false, order: [], autoWidth: false,
    layout: { topStart: few ? null : "search", topEnd: few ? null : { buttons } },
    columnDefs: [{ targets: "hidden", visible: false }, { targets: "num", orderSequence: ["desc", "asc", ""] }],
    language: { search: "Filter" },
  });
  if (asked && table === found) made.search(asked).draw();
  const box = table.parentElement; // what scrolls sideways is the table now, not its tools
  for (const name of ["role", "aria-label", "tabindex"]) {
    box.setAttribute(name, region.getAttribute(name));
    region.removeAttribute(name);
  }
});
/* "You are here": a line at the reader's rho in every pane of a picture whose axis is logarithmic. */
document.querySelectorAll("input[data-panes]").forEach((input) => {
  const asked = input.closest("p"), plot = asked.nextElementSibling.querySelector(".plot"), image = plot.querySelector("img");
  const ends = input.dataset.panes.split(" ").map(Number), [first, last] = [input.min, input.max].map(Number);
  const lines = ends.filter((_, i) => i % 2 === 0).map(() => plot.appendChild(document.createElement("i")));
  const draw = () => {
    const share = Math.log(input.valueAsNumber / first) / Math.log(last / first);
    lines.forEach((line, i) => {
      line.hidden = !(share >= 0 && share <= 1);
      line.style.left = `${image.clientWidth * (ends[2 * i] + share * (ends[2 * i + 1] - ends[2 * i]))}px`;
    });
  };
  addEventListener("resize", draw);
  input.addEventListener("input", draw);
  asked.hidden = false;
  draw();
});
/* A link to what is folded away opens it. */
const unfold = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let one = target; one; one = one.parentElement) if (one.matches("details")) one.open = true;
  target?.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();
