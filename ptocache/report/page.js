// Makes the headers of tables into buttons that sort, and says above a chart what is under the pointer. Without it
// the page shows all the same: tables in the order that they have, and the charts' own tooltips.
"use strict";

const texts = new Intl.Collator("en", { numeric: true });

function compare(one, other, numeric) {
  const [left, right] = [one, other].map((cell) => cell.dataset.value ?? cell.textContent);
  return numeric ? Number(left) - Number(right) : texts.compare(left, right);
}

function sort(table, column) {
  const headers = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const header = headers[column];
  const numeric = header.classList.contains("number");
  const before = header.getAttribute("aria-sort") ?? (numeric ? "ascending" : "descending");
  const falling = before === "ascending";
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => (falling ? -1 : 1) * compare(one.cells[column], other.cells[column], numeric));
  headers.forEach((each) => each.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", falling ? "descending" : "ascending");
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[table.tHead.rows.length - 1].cells].forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(table, column));
    header.append(button);
  });
}

for (const figure of document.querySelectorAll("figure")) {
  const readout = figure.querySelector(".readout");
  const text = readout.textContent;
  for (const band of figure.querySelectorAll(".band")) {
    const title = band.querySelector("title");
    title.remove();
    band.addEventListener("pointerenter", () => { readout.textContent = title.textContent; });
    band.addEventListener("pointerleave", () => { readout.textContent = text; });
  }
}
