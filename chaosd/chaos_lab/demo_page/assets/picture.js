// What the hospitals take part for, as a picture and a table, from the figures of the comparison.

import { element, plain, write } from "./text.js";

const [WIDTH, ROW, LEFT] = [640, 34, 150];
const [LEAST, MOST] = [0.5, 1];
const SIDE = 320;

const mean = (values) => values.reduce((total, one) => total + one, 0) / values.length;
const percent = (value) => value.toFixed(3);

/** `figures`: what `compare.py --json` writes. */
export function showPicture(figures) {
  const models = [...figures.hospitals, figures.common];
  drawBars(document.getElementById("bars"), models, figures.common);
  drawBelief(document.getElementById("belief"), models, figures.common);
  document.getElementById("gain-rows").replaceChildren(...figures.hospitals.map((one) => gainRow(one, figures.common)));
  write(document.getElementById("gain-text"), inWords(figures));
  document.getElementById("gain").hidden = false;
}

function gainRow(one, common) {
  const cells = [one.everybody, common.everybody, one.home, one.common_at].map((values) =>
    element("td", { class: "number" }, percent(mean(values))),
  );
  return element("tr", {}, element("td", {}, plain(one.name)), ...cells);
}

function inWords(figures) {
  const seeds = figures.common.everybody.length;
  const best = figures.common.everybody.filter((value, seed) => figures.hospitals.every((one) => value > one.everybody[seed])).length;
  const alone = figures.hospitals.filter((one) => mean(one.common_at) < mean(one.home)).map((one) => plain(one.name));
  return `On all patients the common model is the best of them in ${best} of ${seeds} trainings. On its own patients alone a hospital is better off by itself at: ${alone.join(", ") || "none"}.`;
}

function drawBars(svg, models, common) {
  const height = models.length * ROW + 30;
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  const x = (value) => LEFT + ((Math.max(LEAST, value) - LEAST) / (MOST - LEAST)) * (WIDTH - LEFT - 60);
  const parts = models.flatMap((model, number) => {
    const y = number * ROW;
    const kind = model === common ? "bar common" : "bar";
    const value = mean(model.everybody);
    return [
      element("svg:text", { x: LEFT - 8, y: y + 20, "text-anchor": "end" }, plain(model.name)),
      element("svg:rect", { class: kind, x: LEFT, y: y + 5, width: x(value) - LEFT, height: ROW - 12 }),
      ...model.everybody.map((one) => element("svg:circle", { class: "dot", cx: x(one), cy: y + 16, r: 2.5 })),
      element("svg:text", { x: x(Math.max(...model.everybody)) + 8, y: y + 20 }, percent(value)),
    ];
  });
  const axis = [0.5, 0.6, 0.7, 0.8, 0.9, 1].flatMap((value) => [
    element("svg:line", { class: "axis", x1: x(value), x2: x(value), y1: 0, y2: height - 24 }),
    element("svg:text", { class: "small", x: x(value), y: height - 8, "text-anchor": "middle" }, value.toFixed(1)),
  ]);
  svg.replaceChildren(...axis, ...parts);
}

function drawBelief(svg, models, common) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${SIDE + 30}`);
  const [x, y] = [(value) => 40 + value * (SIDE - 40), (value) => SIDE - value * (SIDE - 20)];
  const axis = [0, 0.5, 1].flatMap((value) => [
    element("svg:line", { class: "axis", x1: x(value), x2: x(value), y1: y(0), y2: y(1) }),
    element("svg:line", { class: "axis", x1: x(0), x2: x(1), y1: y(value), y2: y(value) }),
    element("svg:text", { class: "small", x: x(value), y: SIDE + 18, "text-anchor": "middle" }, String(value)),
    element("svg:text", { class: "small", x: 32, y: y(value) + 4, "text-anchor": "end" }, String(value)),
  ]);
  const curves = models.flatMap((model, number) => {
    const [told, sick] = model.reliability;
    const points = told.map((one, place) => `${x(one)},${y(sick[place])}`).join(" ");
    const kind = `line${number}${model === common ? " common" : ""}`;
    return [
      element("svg:polyline", { class: `belief ${kind}`, points }),
      element("svg:text", { class: `line${number}`, x: SIDE + 20, y: 40 + number * 22 }, `${plain(model.name)} (Brier score ${percent(mean(model.brier))})`),
    ];
  });
  svg.replaceChildren(...axis, element("svg:line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }), ...curves);
}
