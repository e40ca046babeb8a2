"use strict";
// Pieces that every figure is made of: SVG elements, axes, the box that follows the pointer.

const SVG = "http://www.w3.org/2000/svg";

// Of lists so long that they would not fit the stack as arguments of Math.max.
const largest = (values, start = -Infinity) => values.reduce((a, b) => (b > a ? b : a), start);
const smallest = (values) => values.reduce((a, b) => (b < a ? b : a), Infinity);

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== "") made.textContent = text;
  return made;
}

/** An empty picture as wide as its place; in print and after that it scales. */
function picture(canvas, height, label) {
  const width = Math.max(280, Math.floor(canvas.clientWidth || 600));
  const svg = element("svg", { viewBox: `0 0 ${width} ${Math.round(height)}`, role: "img", "aria-label": label });
  canvas.replaceChildren(svg);
  return { svg, width };
}

/** At most about `count` round numbers from low to high; whole ones if `whole`. */
function ticks(low, high, count, whole = false) {
  const raw = Math.max((high - low) / Math.max(count, 1) || 1, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
  return { values: found, step };
}

/** Text of a tick, with as many decimals as its step needs. */
function tickText(value, step) {
  return value.toFixed(Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9))));
}

function axes(svg, box, x, y, names) {
  const across = ticks(x.low, x.high, Math.max(2, box.width / 60), names.x === "round");
  const up = ticks(y.low, y.high, 7);
  for (const value of up.values) {
    svg.append(element("path", { class: "grid", d: `M${box.left} ${y.at(value)}h${box.width}` }));
    svg.append(element("text", { x: box.left - 6, y: y.at(value) + 4, "text-anchor": "end" }, tickText(value, up.step)));
  }
  for (const value of across.values) {
    const text = tickText(value, across.step);
    svg.append(element("path", { class: "axis", d: `M${x.at(value)} ${box.top + box.height}v4` }));
    svg.append(element("text", { x: x.at(value), y: box.top + box.height + 17, "text-anchor": "middle" }, text));
  }
  svg.append(element("path", { class: "axis", d: `M${box.left} ${box.top}v${box.height}h${box.width}` }));
  const middle = box.left + box.width / 2;
  svg.append(element("text", { x: middle, y: box.top + box.height + 36, "text-anchor": "middle" }, names.x));
  svg.append(element("text", { x: 2, y: 12 }, names.y));
}

/** A scale from numbers to pixels. */
function scale(low, high, from, to) {
  const span = high - low || 1;
  return { low, high, at: (value) => from + ((value - low) / span) * (to - from) };
}

/** Where the pointer is, in the units of the picture. */
function pointer(event, svg) {
  const frame = svg.getBoundingClientRect();
  const zoom = svg.viewBox.baseVal.width / frame.width;
  return { x: (event.clientX - frame.left) * zoom, y: (event.clientY - frame.top) * zoom };
}

/** Calls `tell(point)` while the pointer is over the picture; what it returns is shown: [[text, value, colour], ...]. */
function follow(canvas, svg, tell, leave = () => {}) {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  canvas.append(tip);
  const move = (event) => {
    const point = pointer(event, svg);
    const rows = tell(point);
    tip.hidden = !rows;
    if (!rows) return;
    tip.replaceChildren(...rows.map(([text, value, colour]) => {
      const row = document.createElement("div");
      const name = document.createElement("span");
      const number = document.createElement("b");
      name.textContent = text;
      if (colour) name.style.borderColor = colour;
      number.textContent = value;
      row.append(name, number);
      return row;
    }));
    const left = (point.x / svg.viewBox.baseVal.width) * canvas.clientWidth;
    const top = (point.y / svg.viewBox.baseVal.height) * canvas.clientHeight;
    const beside = left > canvas.clientWidth / 2 ? left - tip.offsetWidth - 14 : left + 14;
    tip.style.left = `${Math.max(0, Math.min(beside, canvas.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, Math.min(top + 10, canvas.clientHeight - tip.offsetHeight))}px`;
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", () => { tip.hidden = true; leave(); });
}

const percent = (value, digits = 2) => `${(100 * value).toFixed(digits)} %`;
