// Tables that readers sort: by the buttons in their heads, or by a choice above the cards of a phone.

/** What a field is sorted by: a number if there is one, else its text; null where nothing was recorded. */
function sortKey(field) {
  if (field.dataset.value !== undefined) return Number(field.dataset.value);
  // A long text stands there twice, shortened and whole.
  const text = (field.querySelector("details > span") || field).textContent.trim();
  if (text === "–") return null;
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

function compareKeys(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, "en", { numeric: true });
}

/** Puts the rows in the order of a column; rows without a value come last in either direction. */
function sortRows(table, column, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: sortKey(row.cells[column]) }));
  rows.sort((a, b) => (a.key === null || b.key === null ? (a.key === null) - (b.key === null) : sign * compareKeys(a.key, b.key)));
  table.tBodies[0].append(...rows.map(({ row }) => row));
  [...table.tHead.rows[0].cells].forEach((head, number) => {
    if (number === column) head.setAttribute("aria-sort", direction);
    else head.removeAttribute("aria-sort");
  });
}

function makeSortable(table) {
  if (table.tBodies[0].rows.length < 2) return;
  const heads = [...table.tHead.rows[0].cells];
  const choice = document.createElement("select");
  const label = document.createElement("label");
  label.className = "choose sort";
  label.append("Sorted by ", choice);
  const first = (head) => head.dataset.first || "descending";
  const sort = (column, direction) => {
    sortRows(table, column, direction);
    choice.value = `${column} ${direction}`;
  };
  // Rows that no column orders are those of the lines, the most accurate first.
  const unsorted = new Option("final accuracy", "");
  unsorted.disabled = true;
  choice.append(unsorted);
  const words = { ascending: "lowest first", descending: "highest first" };
  heads.forEach((head, column) => {
    const title = head.textContent;
    const other = first(head) === "ascending" ? "descending" : "ascending";
    for (const direction of [first(head), other]) choice.append(new Option(`${title}, ${words[direction]}`, `${column} ${direction}`));
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = title;
    button.addEventListener("click", () => sort(column, head.getAttribute("aria-sort") === first(head) ? other : first(head)));
    head.replaceChildren(button);
  });
  choice.addEventListener("change", () => {
    const [column, direction] = choice.value.split(" ");
    sort(Number(column), direction);
  });
  const now = heads.findIndex((head) => head.hasAttribute("aria-sort"));
  choice.value = now < 0 ? "" : `${now} ${heads[now].getAttribute("aria-sort")}`;
  table.parentElement.before(label);
}
