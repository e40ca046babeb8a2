// Puts the figures into the page, and keeps them right when a line is shown or hidden, runs are chosen or the window resized.

const data = JSON.parse(document.getElementById("data").textContent);
const MOST_LINES = 10; // at first: one for each colour
const hidden = new Set(data.lines.keys());
[...hidden].slice(0, MOST_LINES).forEach((number) => hidden.delete(number));
const CURVES = {
  accuracy: { x: "round", metric: "accuracy", names: { x: "round", y: "accuracy, %" } },
  auc: { x: "round", metric: "auc", names: { x: "round", y: "AUC, %" } },
  communication: { x: "bytes_up", metric: "accuracy", names: { x: "sent up by all clients, MB", y: "accuracy, %" } },
  kept_share: { x: "round", metric: "kept_share", names: { x: "round", y: "share of samples kept, %" } },
  kept_accuracy: { x: "round", metric: "kept_accuracy", names: { x: "round", y: "accuracy of kept labels, %" } },
};
const BY_CLASS = {
  kept_share_by_class: { values: "kept_share", value: "kept", nothing: "none seen" },
  kept_accuracy_by_class: { values: "kept_accuracy", value: "right", nothing: "none kept" },
};
const ONE_RUN = { partition: drawPartition, weights: drawWeights, client_accuracy: drawClientAccuracy, confusion: drawConfusion };
const COMPARED = { recall_difference: drawRecallDifference };
let chosen = 0;
let pair = [];

function draw(canvas) {
  const name = canvas.dataset.figure;
  if (CURVES[name]) {
    drawLines(canvas, data.lines, hidden, CURVES[name]);
    return;
  }
  if (BY_CLASS[name]) {
    drawByClass(canvas, data.lines, hidden, data.by_class, BY_CLASS[name]);
    return;
  }
  if (COMPARED[name]) {
    COMPARED[name](canvas, ...pair);
    return;
  }
  const content = data.runs[chosen][name];
  canvas.closest("figure").querySelector(".lacking").hidden = Boolean(content);
  if (content) ONE_RUN[name](canvas, content);
  else canvas.replaceChildren();
}

const canvases = [...document.querySelectorAll("[data-figure]")];
const drawAll = (names) => canvases.filter((canvas) => canvas.dataset.figure in names).forEach(draw);

/** Dims all lines but one; none if it is null or not drawn. */
function emphasise(number) {
  for (const drawn of document.querySelectorAll(".canvas svg [data-line]")) {
    const isOther = number !== null && !hidden.has(number) && Number(drawn.dataset.line) !== number;
    drawn.classList.toggle("dim", isOther);
    drawn.classList.toggle("lit", number !== null && !isOther);
  }
}

function makeLegend(legend) {
  const buttons = data.lines.map((line, number) => {
    const button = document.createElement("button");
    const swatch = document.createElement("span");
    swatch.className = `swatch dash${Math.floor(number / COLOURS) % 3}`;
    swatch.style.color = lineStyle(number).stroke;
    button.append(swatch, line.name);
    button.dataset.line = number;
    button.addEventListener("click", () => {
      if (!hidden.delete(number)) hidden.add(number);
      show();
    });
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => emphasise(number));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => emphasise(null));
    return button;
  });
  const show = () => {
    buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(!hidden.has(number))));
    drawAll({ ...CURVES, ...BY_CLASS });
  };
  legend.append(...buttons);
  if (buttons.length > 3) {
    const all = document.createElement("button");
    all.className = "all";
    all.textContent = "all or none";
    all.addEventListener("click", () => {
      const none = hidden.size === 0;
      hidden.clear();
      if (none) data.lines.forEach((_, number) => hidden.add(number));
      show();
    });
    legend.append(all);
  }
  show();
}

makeLegend(document.getElementById("legend"));
const choice = document.getElementById("run");
if (choice) {
  choice.addEventListener("change", () => {
    chosen = Number(choice.value);
    drawAll(ONE_RUN);
  });
  drawAll(ONE_RUN);
}

const sides = ["first", "second"].map((side) => document.getElementById(side));
if (data.comparison) {
  const compare = () => {
    pair = sides.map((side) => data.comparison.items[Number(side.value)]);
    document.getElementById("difference").replaceChildren(differenceTable(data.comparison.measures, ...pair));
    document.getElementById("other_settings").replaceChildren(otherSettings(...pair));
    drawAll(COMPARED);
  };
  sides.forEach((side) => side.addEventListener("change", compare));
  compare();
}

document.querySelectorAll("table[data-sortable]").forEach(makeSortable);

const widths = new Map(canvases.map((canvas) => [canvas, canvas.clientWidth]));
const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (widths.get(target) !== target.clientWidth && target.clientWidth) {
      widths.set(target, target.clientWidth);
      draw(target);
    }
  }
});
canvases.forEach((canvas) => watcher.observe(canvas));

// What is folded away on a screen cannot be unfolded on paper.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((part) => { part.open = true; });
});
addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));
