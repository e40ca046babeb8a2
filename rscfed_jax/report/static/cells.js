// Figures made of cells: classes at clients, confusion of classes, and heat maps of anything else.

const LEVELS = 32;

const shade = (level) => `color-mix(in oklab, var(--heat) ${Math.round(100 * level)}%, var(--cool))`;

/** Draws rows x columns of cells; `level(row, column)` is from 0 to 1, or null where there is nothing. */
function drawCells(svg, box, rows, columns, level) {
  // One path for each shade: tens of thousands of cells stay quick.
  const paths = new Map();
  const gap = Math.min(1, box.width / columns / 8);
  const w = box.width / columns;
  const h = box.height / rows;
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const value = level(row, column);
      const key = value === null ? "missing" : Math.round(value * LEVELS);
      const left = (box.left + column * w).toFixed(2);
      const d = value === null
        ? `M${left} ${(box.top + (row + 0.5) * h).toFixed(2)}m${(w * 0.3).toFixed(2)} 0h${(w * 0.4).toFixed(2)}`
        : `M${left} ${(box.top + row * h).toFixed(2)}h${(w - gap).toFixed(2)}v${(h - gap).toFixed(2)}h${(gap - w).toFixed(2)}z`;
      paths.set(key, (paths.get(key) || "") + d);
    }
  }
  for (const [key, d] of paths) {
    svg.append(element("path", key === "missing" ? { class: "missing", d } : { class: "cells", d, style: `fill: ${shade(key / LEVELS)}` }));
  }
}

/** The cell under the pointer, or null. */
function cellAt(point, box, rows, columns) {
  const row = Math.floor(((point.y - box.top) / box.height) * rows);
  const column = Math.floor(((point.x - box.left) / box.width) * columns);
  return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null;
}

const rowHeight = (rows) => (rows <= 20 ? 26 : rows <= 60 ? 15 : 8);
const NICE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const everyNth = (size) => NICE.find((n) => n * size >= 14) || 1000;
const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function rowNames(svg, box, names) {
  const h = box.height / names.length;
  const nth = everyNth(h);
  names.forEach((name, row) => {
    if (row % nth === 0) svg.append(element("text", { x: box.left - 6, y: box.top + (row + 0.5) * h + 4, "text-anchor": "end" }, name));
  });
}

/** Numbers below the columns: the multiples of the smallest round number that leaves room between them. */
function columnNames(svg, box, numbers, below) {
  const w = box.width / numbers.length;
  const room = Math.max(...numbers.map((number) => String(number).length)) * 7.5 + 8;
  const multiples = (n) => numbers.flatMap((number, column) => (number % n === 0 ? [column] : []));
  const fits = (n) => multiples(n).every((column, at, all) => at === 0 || (column - all[at - 1]) * w >= room);
  for (const column of multiples(NICE.find(fits) || 10000)) {
    svg.append(element("text", { x: box.left + (column + 0.5) * w, y: box.top + box.height + 15, "text-anchor": "middle" }, numbers[column]));
  }
  svg.append(element("text", { x: box.left + box.width / 2, y: box.top + box.height + 33, "text-anchor": "middle" }, below));
}

/** A key from 0 to `most` above a picture, at its right. */
function colourKey(svg, width, most, title) {
  const left = width - 150;
  for (let n = 0; n < 20; n += 1) svg.append(element("rect", { x: left + n * 5, y: 4, width: 5, height: 10, "shape-rendering": "crispEdges", style: `fill: ${shade(n / 19)}` }));
  svg.append(element("text", { x: left - 5, y: 13, "text-anchor": "end" }, `${title} 0`));
  svg.append(element("text", { x: left + 105, y: 13 }, most));
}

const holds = (labels, size) => (labels === 0 ? "none" : labels < size ? "part" : "full");

/** How a row is called: by the client's number, or `server`. */
const holder = (client, server) => (client === server ? "server" : client);
const named = (client, server) => (client === server ? "server" : `client ${client}`);
const nameRoom = (server) => (server === null ? 34 : 46);

/** A small histogram of classes for each client, one below the other, on one scale. */
function drawPartition(canvas, { class_names: names, class_counts: counts, labels, server }) {
  const sizes = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const most = largest(counts.flat(), 1);
  const height = Math.max(rowHeight(counts.length), 10);
  const { svg, width } = picture(canvas, 24 + height * counts.length + 40, "samples of each class at each client");
  const right = 14 + 7.5 * Math.max(...sizes.map((size) => String(size).length), 4);
  const left = nameRoom(server);
  const box = { left, top: 24, width: width - left - right, height: height * counts.length };
  const w = box.width / names.length;
  const bars = { none: "", part: "", full: "" };
  counts.forEach((row, client) => {
    const floor = box.top + (client + 1) * height;
    svg.append(element("path", { class: "grid", d: `M${box.left} ${floor}h${box.width}` }));
    row.forEach((count, label) => {
      if (!count) return;
      const tall = Math.max(1, (count / most) * (height - 2));
      bars[holds(labels[client], sizes[client])] += `M${(box.left + (label + 0.1) * w).toFixed(2)} ${floor}v${-tall.toFixed(2)}h${(0.8 * w).toFixed(2)}v${tall.toFixed(2)}z`;
    });
    if (client % everyNth(height) === 0) svg.append(element("text", { x: box.left + box.width + 6, y: floor - height / 2 + 4 }, sizes[client]));
  });
  for (const [kind, d] of Object.entries(bars)) if (d) svg.append(element("path", { class: "bars", d, fill: `var(--${kind})` }));
  rowNames(svg, box, counts.map((_, client) => holder(client, server)));
  columnNames(svg, box, names.map((_, label) => label), "class");
  svg.append(element("text", { x: 2, y: 12 }, "client"));
  svg.append(element("text", { x: width - 2, y: 12, "text-anchor": "end" }, "samples"));
  follow(canvas, svg, (point) => {
    const cell = cellAt(point, box, counts.length, names.length);
    if (!cell) return null;
    const { row, column } = cell;
    return [[named(row, server), `${sizes[row]} samples`], ["with labels", labels[row]], [`class ${column} ${names[column] === String(column) ? "" : names[column]}`, counts[row][column]]];
  });
}

/**
 * A heat map of `rows` [names][numbers] from 0 to `most`; a dash where there is no value. `words` names the rows, the
 * columns and the values; `tell(value, row, column)` is shown at the pointer; `write`, if given, makes a cell's text.
 */
function drawHeat(canvas, { names, numbers, rows, most, mostText, words, tell, write = null }) {
  const height = rowHeight(names.length);
  const { svg, width } = picture(canvas, 24 + height * names.length + 40, `${words.value} of each ${words.row} by ${words.column}`);
  const left = Math.max(34, 12 + 7 * Math.max(...names.map((name) => String(name).length)));
  const box = { left, top: 24, width: width - left - 10, height: height * names.length };
  drawCells(svg, box, names.length, numbers.length, (row, column) => (rows[row][column] === null ? null : rows[row][column] / most));
  const w = box.width / numbers.length;
  if (write && w >= 32 && height >= 15) {
    rows.forEach((row, r) => row.forEach((value, c) => {
      const dark = value / most > 0.5 ? " dark" : "";
      if (value !== null) svg.append(element("text", { class: `on${dark}`, x: box.left + (c + 0.5) * w, y: box.top + (r + 0.5) * height + 4, "text-anchor": "middle" }, write(value)));
    }));
  }
  rowNames(svg, box, names);
  columnNames(svg, box, numbers, words.column);
  svg.append(element("text", { x: 2, y: 12 }, words.row));
  colourKey(svg, width, mostText, words.value);
  follow(canvas, svg, (point) => {
    const cell = cellAt(point, box, names.length, numbers.length);
    return cell && tell(rows[cell.row][cell.column], cell.row, cell.column);
  });
}

/** The weight of each client at each evaluation; a dash where it was not drawn. */
function drawWeights(canvas, { clients, rounds, rows, server }) {
  const most = largest(rows.flat().filter((value) => value !== null), 1e-12);
  drawHeat(canvas, {
    names: clients.map((client) => holder(client, server)), numbers: rounds, rows, most, mostText: most.toPrecision(2), words: { row: "client", column: "round", value: "weight" },
    tell: (value, row, column) => [[named(clients[row], server), `round ${rounds[column]}`], ["weight", value === null ? "not drawn" : value.toPrecision(3)]],
  });
}

/** The accuracy of the model on each client's own class mixture at each evaluation. */
function drawClientAccuracy(canvas, { clients, rounds, rows }) {
  drawHeat(canvas, {
    names: clients, numbers: rounds, rows, most: 1, mostText: "100 %", words: { row: "client", column: "round", value: "accuracy" },
    tell: (value, row, column) => [[`client ${clients[row]}`, `round ${rounds[column]}`], ["accuracy", value === null ? "no test samples" : percent(value, 1)]],
  });
}

/** Pseudo-labels of each true class: a row for each line of the report that has them and is not hidden. */
function drawByClass(canvas, lines, hidden, content, { values, value: word, nothing }) {
  const shown = content.lines.map((number, row) => ({ number, row })).filter(({ number }) => !hidden.has(number));
  if (!shown.length) {
    const { svg, width } = picture(canvas, 80, "no lines");
    svg.append(element("text", { x: width / 2, y: 40, "text-anchor": "middle" }, "No lines to show."));
    return;
  }
  const names = content.class_names;
  const named = (column) => `class ${column} ${names[column] === String(column) ? "" : names[column]}`;
  drawHeat(canvas, {
    names: shown.map(({ number }) => shorten(lines[number].name, canvas.clientWidth < 500 ? 10 : 20)),
    numbers: names.map((_, label) => label), rows: shown.map(({ row }) => content[values][row]), most: 1, mostText: "100 %",
    words: { row: "run", column: "class", value: word }, write: (value) => (100 * value).toFixed(0),
    tell: (value, row, column) => [[lines[shown[row].number].name, ""], [named(column), value === null ? nothing : percent(value, 1)]],
  });
}

/** Rows are the true classes; a shade is the part of its row. */
function drawConfusion(canvas, { matrix, names }) {
  const classes = matrix.length;
  const named = names.map((name, label) => (classes > 20 || name === String(label) ? String(label) : `${label} ${shorten(name, 12)}`));
  const room = canvas.clientWidth || 600;
  const left = 12 + 7 * Math.max(...named.map((name) => name.length));
  const side = Math.max(200, Math.min(room - left - 8, 560, 70 * classes));
  const { svg, width } = picture(canvas, 24 + side + 40, "confusion matrix");
  const box = { left, top: 24, width: Math.min(side, width - left - 8), height: side };
  const sums = matrix.map((row) => row.reduce((a, b) => a + b, 0));
  const part = (row, column) => (sums[row] ? matrix[row][column] / sums[row] : null);
  drawCells(svg, box, classes, classes, part);
  const w = box.width / classes;
  if (w >= 7.5 * String(largest(matrix.flat())).length + 2) {
    matrix.forEach((row, r) => row.forEach((count, c) => {
      const dark = part(r, c) > 0.5 ? " dark" : "";
      if (count) svg.append(element("text", { class: `on${dark}`, x: box.left + (c + 0.5) * w, y: box.top + (r + 0.5) * (side / classes) + 4, "text-anchor": "middle" }, count));
    }));
  }
  rowNames(svg, box, named);
  columnNames(svg, box, names.map((_, label) => label), "predicted class");
  svg.append(element("text", { x: 2, y: 12 }, "true class"));
  if (width > 330) colourKey(svg, Math.min(width, box.left + box.width + 40), "100 %", "of its row");
  follow(canvas, svg, (point) => {
    const cell = cellAt(point, box, classes, classes);
    if (!cell) return null;
    const { row, column } = cell;
    return [["true", names[row]], ["predicted", names[column]], [matrix[row][column], sums[row] ? percent(part(row, column), 1) : "no samples"]];
  });
}
