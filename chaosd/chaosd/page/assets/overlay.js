// The overlay as a picture: sites on a circle, links with rate and round trip, the tree of the next round, the scheduler.

import { classes, element, keyed, milliseconds, plain, rate, short, UNKNOWN, write } from "./text.js";

const WIDTH = 640;
const HEIGHT = 420;
const [RADIUS_X, RADIUS_Y] = [195, 150];
const LABELS_MAX = 16; // more links than this: their figures stand in the table and in the titles only

const keyOfLink = (link) => [link.one, link.other].sort().join(" ");

/** The links that the trees of the next round use, and the sites that no tree leads further up from. */
export function treeOf(status) {
  const links = new Set(status.tree.map(([child, parent]) => [child, parent].sort().join(" ")));
  const children = new Set(status.tree.map(([child]) => child));
  const roots = new Set(status.tree.map(([, parent]) => parent).filter((site) => !children.has(site)));
  return { links, roots, has: (link) => links.has(keyOfLink(link)) };
}

function places(sites) {
  const found = new Map();
  const count = sites.length;
  sites.forEach((site, number) => {
    const angle = -Math.PI / 2 + (2 * Math.PI * number) / Math.max(1, count);
    const alone = count === 1 ? 0 : 1;
    found.set(site, { x: WIDTH / 2 + alone * RADIUS_X * Math.cos(angle), y: HEIGHT / 2 + alone * RADIUS_Y * Math.sin(angle) });
  });
  return found;
}

export function drawOverlay(svg, status, names) {
  const sites = [...new Map(status.sites.map((site) => [site.site, site])).values()].sort((a, b) => (a.site < b.site ? -1 : 1));
  const known = new Set(sites.map((site) => site.site));
  const connected = status.links.flatMap((link) => [link.one, link.other]).filter((site) => !known.has(site));
  for (const site of new Set([...connected, ...(known.has(status.site) ? [] : [status.site])])) {
    sites.push({ site, name: names(site), state: "joining", phase: null, round: null });
  }
  const at = places(sites.map((site) => site.site));
  const tree = treeOf(status);
  svg.layers ??= ["links", "labels", "nodes"].map((name) => svg.appendChild(element("svg:g", { class: name })));
  const [links, labels, nodes] = svg.layers;
  const shown = status.links.filter((link) => at.has(link.one) && at.has(link.other));

  keyed(links, shown, keyOfLink, () => element("svg:line", {}, element("svg:title")), (line, link) => {
    const [from, to] = [at.get(link.one), at.get(link.other)];
    for (const [name, value] of Object.entries({ x1: from.x, y1: from.y, x2: to.x, y2: to.y })) line.setAttribute(name, value);
    classes(line, `link${tree.has(link) ? " tree" : ""}${link.up === false ? " down" : ""}`);
    const up = link.up === null ? "" : link.up ? ", up" : ", down";
    write(line.firstChild, `${names(link.one)} \u2013 ${names(link.other)}: ${rate(link.rate_bytes_per_s)}, ${milliseconds(link.rtt_s)}${up}`);
  });

  const labelled = shown.length <= LABELS_MAX ? shown : [];
  keyed(labels, labelled, keyOfLink, () => element("svg:text", { class: "small halo", "text-anchor": "middle" }), (text, link) => {
    const [from, to] = [at.get(link.one), at.get(link.other)];
    const share = link.one < link.other ? 0.42 : 0.58; // not all in the middle, where links cross
    text.setAttribute("x", from.x + (to.x - from.x) * share);
    text.setAttribute("y", from.y + (to.y - from.y) * share - 7);
    const parts = [link.rate_bytes_per_s === null ? "" : rate(link.rate_bytes_per_s), link.rtt_s === null ? "" : milliseconds(link.rtt_s)];
    write(text, parts.filter(Boolean).join(", "));
  });

  keyed(nodes, sites, (site) => site.site, makeNode, (node, site) => {
    const { x, y } = at.get(site.site);
    node.setAttribute("transform", `translate(${x} ${y})`);
    const [circle, ring, root, label, under, title] = node.children;
    classes(circle, `node ${["learner", "joining", "leaving"].includes(site.state) ? site.state : ""} ${phaseClass(site.phase)}`);
    ring.setAttribute("r", site.site === status.scheduler ? 19 : 0);
    root.setAttribute("r", tree.roots.has(site.site) ? 4 : 0);
    placeLabels(label, under, (x - WIDTH / 2) / RADIUS_X, (y - HEIGHT / 2) / RADIUS_Y);
    const name = names(site.site);
    const most = sites.length > 8 ? 13 : 24;
    write(label, name.length > most ? `${name.slice(0, most - 1)}\u2026` : name);
    const roles = [site.site === status.site ? "this site" : "", site.site === status.scheduler ? "scheduler" : ""].filter(Boolean);
    write(under, [...roles, site.state === "member" ? "" : plain(site.state)].filter(Boolean).join(", "));
    write(title, `${name}: ${plain(site.state)}, ${plain(site.phase ?? UNKNOWN)}, round ${site.round ?? UNKNOWN}`);
  });
}

/** Outside of the circle: beside a site at its sides, above or below one at its top or bottom. */
function placeLabels(label, under, across, down) {
  const beside = Math.abs(across) > 0.4;
  const anchor = Math.abs(across) > 0.15 ? (across > 0 ? "start" : "end") : "middle"; // or neighbours' labels would meet
  const x = beside ? Math.sign(across) * 23 : 0;
  const [first, second] = beside ? [4, 17] : down >= 0 ? [34, 47] : [-37, -24];
  for (const [text, y] of [[label, first], [under, second]]) {
    text.setAttribute("text-anchor", anchor);
    text.setAttribute("x", x);
    text.setAttribute("y", y);
  }
}

function makeNode() {
  return element(
    "svg:g",
    {},
    element("svg:circle", { r: 14 }),
    element("svg:circle", { class: "ring", r: 0 }),
    element("svg:circle", { class: "root", r: 0 }),
    element("svg:text", { class: "halo", "text-anchor": "middle" }),
    element("svg:text", { class: "small halo", "text-anchor": "middle" }),
    element("svg:title"),
  );
}

export const PHASES = ["compute", "reduce", "update", "standby"];
export const phaseClass = (phase) => (PHASES.includes(phase) ? phase : "unknown");
