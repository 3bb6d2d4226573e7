// Curves over the last two minutes, and for each site what it did in the last one. All of it is taken from statuses and
// counters as they came; nothing is asked for a second time.

import { element } from "./text.js";
import { PHASES, phaseClass } from "./overlay.js";

const CURVE_S = 120;
const STRIP_S = 60;
const LOOK_MIN_S = 1; // a rate over less is more noise than rate
const SAMPLES_MAX = 600; // four a second for two minutes, and some more

/** Values at times of the daemon's own clock, so that a page that was delayed draws nothing steep. */
export class Curve {
  constructor(svg, count = 1, fromZero = true) {
    this.svg = svg;
    this.fromZero = fromZero;
    this.samples = [];
    this.lines = [];
    svg.append(element("svg:line", { class: "axis", x1: 0, x2: 480, y1: 105, y2: 105 }));
    for (let number = 0; number < count; number += 1) {
      this.lines.push(svg.appendChild(element("svg:polyline", { class: number ? "curve second" : "curve" })));
    }
  }

  forget() {
    this.samples = [];
  }

  add(atS, ...values) {
    this.samples.push([atS, ...values]);
    while (this.samples.length > SAMPLES_MAX || (this.samples.length && this.samples[0][0] < atS - CURVE_S)) this.samples.shift();
  }

  /** Draws; returns the greatest value shown. */
  draw() {
    const newest = this.samples.at(-1)?.[0] ?? 0;
    const values = this.samples.flatMap((sample) => sample.slice(1));
    const most = this.fromZero ? Math.max(1e-9, ...values) : Math.max(...values);
    const least = this.fromZero ? 0 : Math.min(...values);
    const span = most - least || 1;
    this.lines.forEach((line, number) => {
      const points = this.samples.map((sample) => {
        const x = 480 - ((newest - sample[0]) / CURVE_S) * 480;
        return `${x.toFixed(1)},${(105 - ((sample[number + 1] - least) / span) * 98).toFixed(1)}`;
      });
      line.setAttribute("points", points.join(" "));
    });
    return most;
  }
}

/** A counter's growth per second between two looks a window apart. */
export class Pace {
  constructor(windowS) {
    this.windowS = windowS;
    this.looks = [];
  }

  /** The rate now; null while one look is all there is. A counter that fell began anew. */
  look(atS, value) {
    const last = this.looks.at(-1);
    if (last && (value < last[1] || atS < last[0])) this.looks = [];
    this.looks.push([atS, value]);
    while (this.looks.length > 2 && this.looks[1][0] <= atS - this.windowS) this.looks.shift();
    const [beganS, began] = this.looks[0];
    return atS >= beganS + LOOK_MIN_S ? (value - began) / (atS - beganS) : null;
  }
}

/** The phases of every site in the last minute, as the statuses showed them. */
export class Strips {
  constructor() {
    this.of = new Map();
  }

  look(status) {
    const now = status.uptime_s;
    const present = new Set();
    for (const site of status.sites) {
      present.add(site.site);
      let looks = this.of.get(site.site);
      if (!looks || (looks.length && looks.at(-1).atS > now)) this.of.set(site.site, (looks = []));
      looks.push({ atS: now, phase: phaseClass(site.phase) });
      while (looks.length > SAMPLES_MAX || looks[0].atS < now - STRIP_S) looks.shift();
    }
    for (const site of this.of.keys()) if (!present.has(site)) this.of.delete(site);
  }

  /** Shares of the phases of `site`, of the looks at which one was known; null where there was none. */
  shares(site) {
    const looks = (this.of.get(site) ?? []).filter((look) => look.phase !== "unknown");
    if (looks.length < 8) return null;
    return Object.fromEntries(PHASES.map((phase) => [phase, looks.filter((look) => look.phase === phase).length / looks.length]));
  }

  /** The site that the others wait for: it computes clearly more than the next one, while that one waits in reduce. */
  slowest() {
    const all = [...this.of.keys()].map((site) => [site, this.shares(site)]).filter(([, shares]) => shares && shares.standby < 0.5);
    if (all.length < 2) return null;
    all.sort((one, other) => other[1].compute - one[1].compute);
    const [[first, most], [, next]] = all;
    return most.compute > next.compute + 0.25 && next.reduce > 0.25 ? first : null;
  }

  draw(svg, site, now) {
    const looks = this.of.get(site) ?? [];
    const runs = [];
    for (const look of looks) {
      const last = runs.at(-1);
      if (last && last.phase === look.phase) last.endS = look.atS;
      else {
        if (last) last.endS = look.atS;
        runs.push({ phase: look.phase, beganS: look.atS, endS: look.atS });
      }
    }
    while (svg.childElementCount > runs.length) svg.lastChild.remove();
    while (svg.childElementCount < runs.length) svg.append(element("svg:rect", { y: 0, height: 14 }));
    runs.forEach((run, number) => {
      const rect = svg.children[number];
      const left = 240 - ((now - run.beganS) / STRIP_S) * 240;
      rect.setAttribute("x", left.toFixed(2));
      rect.setAttribute("width", Math.max(0.6, ((run.endS - run.beganS) / STRIP_S) * 240).toFixed(2));
      rect.setAttribute("class", run.phase);
    });
  }
}

/** Samples of Prometheus' text format: the sum of those of `name` whose labels hold `wanted`. */
export function sum(metrics, name, wanted = {}) {
  let total = 0;
  for (const line of metrics.split("\n")) {
    const found = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found || found[1] !== name) continue;
    const labels = found[2] ?? "";
    if (Object.entries(wanted).every(([key, value]) => labels.includes(`${key}="${value}"`))) total += Number(found[3]);
  }
  return total;
}
