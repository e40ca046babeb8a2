// Two runs beside each other: the differences of their metrics, of their recall by class, and of their settings.

const MOST_CLASSES = 24; // before the smallest differences are left out

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const signed = (value, digits = 2) => {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : `${value < 0 ? "−" : "+"}${text}`;
};

/** Differences seed by seed if both have the same seeds, once each; else null. */
function paired(a, b, measure) {
  const partner = a.seeds.map((seed) => b.seeds.indexOf(seed));
  const isPaired = a.seeds.length === b.seeds.length && new Set(partner).size === partner.length && !partner.includes(-1);
  const differences = partner.map((other, own) => [a.values[measure][own], b.values[measure][other]]);
  return isPaired && differences.flat().every((value) => value !== null) ? differences.map(([x, y]) => x - y) : null;
}

/** Means of both, their difference, and its deviation over paired seeds: null where there is none. */
function differenceOf(a, b, measure) {
  const [x, y] = [a, b].map((item) => item.values[measure].filter((value) => value !== null)).map((known) => (known.length ? mean(known) : null));
  if (x === null || y === null) return { x, y, difference: null, deviation: null };
  const pairs = paired(a, b, measure);
  const squares = pairs && pairs.map((difference) => (difference - (x - y)) ** 2);
  const deviation = pairs && pairs.length > 1 ? Math.sqrt(squares.reduce((s, square) => s + square, 0) / (pairs.length - 1)) : null;
  return { x, y, difference: x - y, deviation };
}

/** A small table; a field is its text, or {text, strong}. */
function smallTable(heads, rows, id) {
  const table = document.createElement("table");
  table.className = "small";
  table.id = id;
  const headRow = table.createTHead().insertRow();
  heads.forEach((text, number) => {
    const head = document.createElement("th");
    head.scope = "col";
    if (number === 0) head.className = "text";
    head.textContent = text;
    headRow.append(head);
  });
  const body = table.createTBody();
  for (const [name, ...fields] of rows) {
    const row = body.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = name;
    row.append(head);
    for (const field of fields) {
      const made = document.createElement(field.strong ? "strong" : "span");
      made.textContent = field.text ?? field;
      row.insertCell().append(made);
    }
  }
  return table;
}

function differenceTable(measures, a, b) {
  return smallTable(["", "A", "B", "A − B"], measures.map(({ title, scale, digits, lower }, measure) => {
    const { x, y, difference, deviation } = differenceOf(a, b, measure);
    const shown = (value) => (value === null ? "–" : (scale * value).toFixed(digits));
    const better = (own, other) => ({ text: shown(own), strong: difference !== null && shown(own) !== shown(other) && own < other === lower });
    const spread = !deviation ? "" : ` ± ${(scale * deviation).toFixed(digits)}`;
    return [title, better(x, y), better(y, x), difference === null ? "–" : signed(scale * difference, digits) + spread];
  }), "differences");
}

function otherSettings(a, b) {
  const names = Object.keys(a.settings).filter((name) => a.settings[name] !== b.settings[name]);
  if (!names.length) {
    const said = document.createElement("p");
    said.className = "faint";
    said.textContent = "A and B have the same settings and seeds.";
    return said;
  }
  const folded = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = `Settings in which A and B differ (${names.length})`;
  folded.append(summary, smallTable(["Setting", "A", "B"], names.map((name) => [name, a.settings[name], b.settings[name]]), "other"));
  return folded;
}

/** The differences of recall in points, [{label, name, x, y, value}]; or why there are none, as a text. */
function recallDifferences(a, b) {
  if (a === b) return "Choose two different runs.";
  if (a.dataset !== b.dataset || (a.recall.length && b.recall.length && a.recall.length !== b.recall.length)) return "The two runs have different classes.";
  const lacking = [["A", a], ["B", b]].filter(([, item]) => !item.recall.length).map(([letter]) => letter);
  if (lacking.length) return `No confusion matrix for ${lacking.join(" and ")}.`;
  // Names are known where a partition is; the other run has numbers.
  const names = a.class_names.map((name, label) => (name === String(label) ? b.class_names[label] : name));
  return names.map((name, label) => {
    const [x, y] = [a.recall[label], b.recall[label]];
    return { label, name: name === String(label) ? name : `${label} ${name}`, x, y, value: x === null || y === null ? null : 100 * (x - y) };
  });
}

function mostDifferent(classes) {
  if (classes.length <= MOST_CLASSES) return classes;
  const known = classes.filter(({ value }) => value !== null);
  const kept = known.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, MOST_CLASSES);
  return kept.sort((a, b) => b.value - a.value);
}

/** A bar for each class from zero to the right where A is better, to the left where B is. */
function drawDifferences(canvas, all) {
  const classes = mostDifferent(all);
  const height = 20;
  const { svg, width } = picture(canvas, 24 + height * classes.length + 44, "difference of recall by class");
  const names = classes.map(({ name }) => shorten(name, width < 500 ? 12 : 20));
  const left = 14 + 7 * Math.max(...names.map((name) => name.length), 3);
  const room = 46; // for numbers beyond the longest bars
  const box = { left, top: 24, width: width - left - 8, height: height * classes.length };
  const most = largest(classes.map(({ value }) => Math.abs(value || 0)), 1);
  const x = scale(-most, most, box.left + room, box.left + box.width - room);
  const across = ticks(-most, most, Math.max(2, box.width / 70));
  for (const value of across.values) {
    svg.append(element("path", { class: "grid", d: `M${x.at(value)} ${box.top}v${box.height}` }));
    svg.append(element("text", { x: x.at(value), y: box.top + box.height + 17, "text-anchor": "middle" }, tickText(value, across.step).replace("-", "−")));
  }
  classes.forEach(({ value }, row) => {
    const middle = box.top + (row + 0.5) * height;
    svg.append(element("text", { x: box.left - 6, y: middle + 4, "text-anchor": "end" }, names[row]));
    if (value !== null && value !== 0) {
      const [from, to] = [Math.min(x.at(0), x.at(value)), Math.max(x.at(0), x.at(value))];
      svg.append(element("rect", { class: value > 0 ? "more" : "less", x: from, y: middle - 6, width: Math.max(1, to - from), height: 12 }));
    }
    const end = x.at(value || 0) + (value < 0 ? -5 : 5);
    svg.append(element("text", { class: "on", x: end, y: middle + 4, "text-anchor": value < 0 ? "end" : "start" }, value === null ? "–" : signed(value, 1)));
  });
  svg.append(element("path", { class: "axis", d: `M${x.at(0)} ${box.top}v${box.height}` }));
  svg.append(element("text", { x: 2, y: 12 }, "class"));
  svg.append(element("text", { x: x.at(0) - 12, y: 12, "text-anchor": "end" }, "← B higher"));
  svg.append(element("text", { x: x.at(0) + 12, y: 12 }, "A higher →"));
  svg.append(element("text", { x: x.at(0), y: box.top + box.height + 36, "text-anchor": "middle" }, "recall, A − B, percentage points"));
  follow(canvas, svg, (point) => {
    const { y } = point;
    const shown = classes[Math.floor(((y - box.top) / box.height) * classes.length)];
    if (!shown) return null;
    const text = (value) => (value === null ? "no samples" : percent(value, 1));
    return [[`class ${shown.name}`, ""], ["A", text(shown.x)], ["B", text(shown.y)]];
  });
}

function drawRecallDifference(canvas, a, b) {
  const differences = recallDifferences(a, b);
  const lacking = canvas.closest("figure").querySelector(".lacking");
  lacking.hidden = typeof differences !== "string";
  if (lacking.hidden) {
    drawDifferences(canvas, differences);
  } else {
    lacking.textContent = differences;
    canvas.replaceChildren();
  }
}
