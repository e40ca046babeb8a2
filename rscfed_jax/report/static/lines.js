// Curves of the lines of the report, with a band of one standard deviation over seeds.

const COLOURS = 10;
const MOST_LISTED = 12; // lines in the box that follows the pointer

function lineStyle(line) {
  return { stroke: `var(--line${line % COLOURS})`, "stroke-dasharray": ["none", "7 4", "2 3"][Math.floor(line / COLOURS) % 3] };
}

/** The points of a line that have both an x and the metric: [{x, mean, deviation, index}]. */
function pointsOf(line, xName, metric) {
  const points = [];
  line.round.forEach((_, index) => {
    const x = line[xName][index];
    const y = line[metric] ? line[metric][index] : null; // a method without pseudo-labels has nothing to say of them
    if (x !== null && y !== null) points.push({ x: xName === "bytes_up" ? x / 1e6 : x, mean: y[0], deviation: y[1] || 0, index });
  });
  return points;
}

function drawLines(canvas, lines, hidden, { x: xName, metric, names }) {
  const shown = lines.map((line, number) => ({ line, number, points: pointsOf(line, xName, metric) }))
    .filter(({ number, points }) => !hidden.has(number) && points.length);
  const { svg, width } = picture(canvas, 300, `${names.y} against ${names.x}`);
  if (!shown.length) {
    svg.append(element("text", { x: width / 2, y: 140, "text-anchor": "middle" }, "No lines to show."));
    return;
  }
  const all = shown.flatMap(({ points }) => points);
  const box = { left: 44, top: 24, width: width - 60, height: 230 };
  const low = smallest(all.map((p) => p.mean - p.deviation));
  const high = largest(all.map((p) => p.mean + p.deviation));
  const room = (high - low || 0.02) * 0.05;
  const y = scale(100 * Math.max(0, low - room), 100 * Math.min(1.005, high + room), box.top + box.height, box.top);
  const x = scale(0, largest(all.map((p) => p.x)), box.left, box.left + box.width);
  axes(svg, box, x, y, names);
  const at = (p, value) => `${x.at(p.x).toFixed(1)} ${y.at(100 * value).toFixed(1)}`;
  // Bands lie below every line, and many of them are fainter, or lines would drown in their mixture.
  const banded = shown.filter(({ points }) => points.some((p) => p.deviation));
  for (const { number, points } of banded) {
    const there = points.map((p) => at(p, p.mean + p.deviation));
    const back = points.map((p) => at(p, p.mean - p.deviation)).reverse();
    const opacity = Math.max(0.03, Math.min(0.16, 0.5 / banded.length)).toFixed(3);
    svg.append(element("path", { class: "band", "data-line": number, fill: lineStyle(number).stroke, style: `opacity: ${opacity}`, d: `M${[...there, ...back].join("L")}Z` }));
  }
  for (const { number, points } of shown) {
    const d = `M${points.map((p) => at(p, p.mean)).join("L")}`;
    svg.append(element("path", { class: "line", d, "data-line": number, ...lineStyle(number) }));
    if (points.length <= 40) {
      for (const p of points) svg.append(element("circle", { "data-line": number, cx: x.at(p.x), cy: y.at(100 * p.mean), r: 2.5, fill: lineStyle(number).stroke }));
    }
  }
  const cross = element("path", { class: "cross", d: "" });
  svg.append(cross);
  const value = (p) => (p.deviation ? `${(100 * p.mean).toFixed(2)} ± ${percent(p.deviation)}` : percent(p.mean));
  const leave = () => cross.setAttribute("d", "");
  follow(canvas, svg, (point) => {
    if (xName !== "round") {
      const distance = (p) => Math.hypot(x.at(p.x) - point.x, y.at(100 * p.mean) - point.y);
      const best = shown.flatMap((s) => s.points.map((p) => ({ ...s, p }))).reduce((a, b) => (distance(b.p) < distance(a.p) ? b : a));
      cross.setAttribute("d", `M${x.at(best.p.x)} ${box.top}v${box.height}`);
      const models = best.line.models_up[best.p.index];
      return [[best.line.name, value(best.p), lineStyle(best.number).stroke], ["round", best.line.round[best.p.index]],
        ["sent up", `${best.p.x.toFixed(1)} MB`], ...(models === null ? [] : [["models up", Math.round(models)]])];
    }
    const nearest = all.reduce((a, b) => (Math.abs(x.at(b.x) - point.x) < Math.abs(x.at(a.x) - point.x) ? b : a)).x;
    cross.setAttribute("d", `M${x.at(nearest)} ${box.top}v${box.height}`);
    const rows = shown.map((s) => ({ ...s, p: s.points.find((p) => p.x === nearest) })).filter((s) => s.p);
    rows.sort((a, b) => b.p.mean - a.p.mean);
    const more = rows.length > MOST_LISTED ? [[`and ${rows.length - MOST_LISTED} more`, ""]] : [];
    const listed = rows.slice(0, MOST_LISTED).map((s) => [s.line.name, value(s.p), lineStyle(s.number).stroke]);
    return [["round", nearest], ...listed, ...more];
  }, leave);
}
