"use strict";
// Click a heading to sort its table: numbers largest first, text in alphabetical order; click again to reverse. Empty
// cells stay last.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const body = heading.closest("table").tBodies[0];
    const column = heading.cellIndex;
    const numeric = heading.classList.contains("number");
    const before = heading.getAttribute("aria-sort");
    const ascending = before ? before === "descending" : !numeric;
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value ?? "";
    const compare = (one, two) => {
      const a = key(one), b = key(two);
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = numeric ? Number(a) - Number(b) : a.localeCompare(b);
      return ascending ? order : -order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
// Open all details before printing.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
