// Tables sort by the column whose heading is pressed: as numbers where every cell is one, else as text.
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const text = (row) => row.cells[column].textContent.trim();
      const number = (row) => Number(text(row).replaceAll(",", ""));
      const rows = [...table.tBodies[0].rows];
      const numeric = rows.every((row) => text(row) !== "" && (!Number.isNaN(number(row)) || text(row) === "nan"));
      rows.sort((a, b) => (numeric ? (number(a) || 0) - (number(b) || 0) : text(a).localeCompare(text(b))));
      if (down) rows.reverse();
      table.tBodies[0].append(...rows);
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
// On paper nothing can be unfolded.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
