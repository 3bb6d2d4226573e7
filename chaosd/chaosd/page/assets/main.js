// The page: takes what /v1/live tells, and shows it. What is known stands in `seen`; everything shown is drawn from it.

import { askAccept, askBan, askBlock, askLeave, askLink, askUnblock, begin } from "./actions.js";
import { Curve, Pace, Strips, sum } from "./charts.js";
import { drawOverlay, treeOf } from "./overlay.js";
import { showPhase, showStanding } from "./standing.js";
import { bytes, classes, clock, duration, element, keyed, milliseconds, plain, rate, short, took, UNKNOWN, write } from "./text.js";

const SILENT_AFTER_MS = 3000; // twelve times the pace of the stream
const COME_BACK_MS = 1000;
const EVENTS_SHOWN_MAX = 500;
const ADDRESS_WHOLE = 32; // characters of an address that is not broken

const by = (id) => document.getElementById(id);
const seen = { status: null, metrics: "", events: [], heardMs: 0, ended: null, life: null, brokenMs: null, shut: false };
const strips = new Strips();
const pace = new Pace(5);
const [sentPace, receivedPace] = [new Pace(3), new Pace(3)];
const paceCurve = new Curve(by("chart-pace"));
const bytesCurve = new Curve(by("chart-bytes"), 2);
let stream = null;

/** The name of a site by its id, or by the beginning of it that events use; with that where another site has it, too. */
function nameOf(site) {
  const sites = seen.status?.sites ?? [];
  const found = sites.find((one) => one.site === site || (site.length >= 4 && one.site.startsWith(site)));
  const name = plain(found?.name || seen.status?.called[site]);
  const shared = name && found && sites.filter((one) => one.name === found.name).length > 1;
  return shared ? `${name} (${short(found.site)})` : name || short(plain(site));
}

// -- what comes

function open() {
  stream?.close();
  stream = new EventSource("/v1/live");
  const take = (kind, handle) => stream.addEventListener(kind, (message) => {
    seen.heardMs = Date.now();
    seen.brokenMs = null;
    handle(JSON.parse(message.data));
  });
  take("status", takeStatus);
  take("metrics", takeMetrics);
  take("workers", showGroup);
  take("record", takeRecord);
  take("end", (reason) => {
    seen.ended = reason;
    stream.close();
    comeBack();
    showConnection();
  });
  stream.onerror = () => {
    seen.brokenMs ??= Date.now();
    showConnection();
    if (stream.readyState === EventSource.CLOSED) comeBack(); // it gave up: the daemon is gone, or another one
  };
}

/** Until a daemon answers here again; one that was started anew does not know this browser. */
async function comeBack() {
  await new Promise((resolve) => setTimeout(resolve, COME_BACK_MS));
  try {
    if (!(await begin())) {
      seen.shut = true;
      showConnection();
      return;
    }
    open();
  } catch {
    comeBack();
  }
}

function takeStatus(status) {
  const life = `${status.site} ${status.incarnation}`;
  if (life !== seen.life) {
    seen.life = life;
    seen.ended = null;
    paceCurve.forget();
    bytesCurve.forget();
  }
  seen.status = status;
  strips.look(status);
  const now = pace.look(status.uptime_s, status.round);
  seen.pace = now;
  if (now !== null) paceCurve.add(status.uptime_s, now);
  showStatus();
}

function takeMetrics(text) {
  seen.metrics = text;
  const at = seen.status?.uptime_s ?? 0;
  const sent = sum(text, "chaosd_bulk_bytes_total", { direction: "sent" });
  const received = sum(text, "chaosd_bulk_bytes_total", { direction: "received" });
  write(by("f-sent"), bytes(sent));
  write(by("f-received"), bytes(received));
  const rates = [sentPace.look(at, sent), receivedPace.look(at, received)];
  if (rates[0] !== null && rates[1] !== null) {
    bytesCurve.add(at, ...rates);
    const most = bytesCurve.draw();
    write(by("chart-bytes-text"), `sent ${bytes(rates[0])}/s (first curve), received ${bytes(rates[1])}/s (second); highest ${bytes(most)}/s`);
  }
}

function takeRecord(record) {
  if (seen.events.some((one) => one.id === record.id)) return;
  seen.events.unshift(record);
  seen.events.sort((one, other) => other.id - one.id);
  seen.events.length = Math.min(seen.events.length, EVENTS_SHOWN_MAX);
  showEventsSoon();
}

let waiting = false;
function showEventsSoon() {
  if (waiting) return;
  waiting = true;
  setTimeout(() => {
    waiting = false;
    showEvents();
  }, 50);
}

// -- what is shown

function showStatus() {
  const status = seen.status;
  const names = nameOf;
  document.title = `${plain(status.name)}: round ${status.round}`;
  write(by("site-name"), plain(status.name) || short(status.site));
  write(by("site-state"), plain(status.state));
  classes(by("site-state"), `badge ${status.state === "member" ? "good" : status.state === "removed" ? "bad" : "warn"}`);
  write(by("site-line"), `${status.site} in run ${plain(status.run)} at ${plain(status.address)}, chaos-train ${plain(status.version)}, epoch ${status.epoch}, term ${status.term}, result ${plain(status.result_digest).slice(0, 12) || UNKNOWN}`);
  showStanding(status, names);

  write(by("f-round"), String(status.round));
  write(by("f-pace"), seen.pace === null || seen.pace === undefined ? UNKNOWN : seen.pace.toFixed(2));
  write(by("f-scheduler"), status.scheduler === null ? UNKNOWN : names(status.scheduler));
  const members = status.sites.filter((site) => site.state === "member").length;
  write(by("f-sites"), `${status.sites.length} (${members} ${members === 1 ? "member" : "members"})`);
  const worker = status.worker;
  write(by("f-worker"), worker.connected ? `pid ${worker.pid ?? UNKNOWN}, ${plain(worker.phase ?? UNKNOWN)}` : "none: start the script");
  write(by("f-uptime"), duration(status.uptime_s));

  drawOverlay(by("overlay"), status, names);
  const most = paceCurve.draw();
  write(by("chart-pace-text"), seen.pace === null ? "not known yet" : `now ${seen.pace.toFixed(2)}, highest ${most.toFixed(2)}`);
  showScript(status);
  showStrangers(status);
  showBlocked(status);
  showSites(status);
  showLinks(status);
  showTransfer(status);
  by("leave").disabled = ["leaving", "removed"].includes(status.state);
}

const cell = (row, number, text, names) => {
  const node = row.children[number];
  write(node, text);
  if (names !== undefined) classes(node, names);
};

function showSites(status) {
  const linked = new Set(status.links.filter((link) => [link.one, link.other].includes(status.site)).flatMap((link) => [link.one, link.other]));
  const slowest = strips.slowest();
  keyed(by("sites"), status.sites, (site) => site.site, makeSiteRow, (row, site) => {
    classes(row, site.site === status.site ? "self" : "");
    const roles = [site.site === status.site ? "this" : "", site.site === status.scheduler ? "scheduler" : ""].filter(Boolean).join(", ");
    cell(row, 0, nameOf(site.site) + (roles ? ` (${roles})` : ""));
    cell(row, 1, short(site.site), "tight");
    cell(row, 2, plain(site.state), site.state === "member" ? "tight good" : "tight warn");
    cell(row, 3, site.voter ? "yes" : "no");
    cell(row, 4, String(site.round ?? UNKNOWN), "number");
    showPhase(row.children[5], site, plain(site.phase ?? UNKNOWN));
    const [strip, share] = row.children[6].children;
    strips.draw(strip, site.site, status.uptime_s);
    const shares = strips.shares(site.site);
    const words = shares === null ? "" : Object.entries(shares).filter(([, part]) => part >= 0.005).map(([phase, part]) => `${phase} ${Math.round(part * 100)} %`).join(", ");
    write(share, words + (site.site === slowest ? "; the others wait for it" : ""));
    classes(share, site.site === slowest ? "bad" : "quiet");
    cell(row, 7, plain(site.software || UNKNOWN), "tight");
    const address = plain(site.address);
    cell(row, 8, address, address.length <= ADDRESS_WHOLE ? "tight" : "");
    const [button, block, drop] = row.children[9].children;
    const other = site.site !== status.site;
    button.hidden = !other || linked.has(site.site) || status.state !== "member";
    button.setAttribute("aria-label", `Add the link to ${nameOf(site.site)}`);
    block.hidden = !other || status.blocked.includes(site.site);
    block.setAttribute("aria-label", `Block ${nameOf(site.site)}`);
    drop.hidden = !other || site.state !== "member" || status.state !== "member";
    drop.setAttribute("aria-label", `Drop ${nameOf(site.site)} from the run`);
  });
}

function makeSiteRow(site) {
  const button = element("button", { type: "button" }, "Add link ...");
  button.onclick = () => askLink(seen.status, nameOf, site.site, true);
  const block = element("button", { type: "button" }, "Block ...");
  block.onclick = () => askBlock(seen.status, nameOf, site.site);
  const drop = element("button", { type: "button", class: "grave" }, "Drop ...");
  drop.onclick = () => askBan(seen.status, nameOf, site.site, strips.slowest() === site.site);
  const strip = element("svg:svg", { viewBox: "0 0 240 14", preserveAspectRatio: "none", "aria-hidden": "true" });
  const cells = ["td", "td", "td", "td", "td", "td"].map((name, number) => element(name, number === 0 ? { class: "name" } : {}));
  return element("tr", {}, ...cells, element("td", { class: "strip" }, strip, element("span")), element("td"), element("td"), element("td", { class: "actions" }, button, block, drop));
}

function showBlocked(status) {
  by("blocked-part").hidden = status.blocked.length === 0;
  keyed(by("blocked"), status.blocked, (site) => site, makeBlocked, (node, site) => {
    write(node.children[0], nameOf(site) === short(site) ? `${site} ` : `${nameOf(site)}, ${site} `);
  });
}

function makeBlocked(site) {
  const button = element("button", { type: "button" }, "Unblock ...");
  button.onclick = () => askUnblock(nameOf, site);
  button.setAttribute("aria-label", `Unblock ${short(site)}`);
  return element("li", {}, element("span"), button);
}

function showStrangers(status) {
  const strangers = status.refused.filter((one) => one.cause === "untrusted" && !status.blocked.includes(one.site));
  by("waiting").hidden = strangers.length === 0;
  keyed(by("strangers"), strangers, (one) => one.site, makeStranger, (node, one) => {
    write(node.children[0], `${one.site}, tried ${one.count} ${one.count === 1 ? "time" : "times"}, last ${duration(one.ago_s)} ago `);
  });
}

function makeStranger(one) {
  const button = element("button", { type: "button" }, "Let in ...");
  button.onclick = () => askAccept(one);
  button.setAttribute("aria-label", `Let ${one.site.slice(0, 8)} in`);
  const block = element("button", { type: "button" }, "Block ...");
  block.onclick = () => askBlock(seen.status, nameOf, one.site);
  block.setAttribute("aria-label", `Block ${one.site.slice(0, 8)}`);
  return element("li", { class: "actions" }, element("span"), button, block);
}

const scriptCurves = new Map(); // of a figure's name

function showScript(status) {
  const figures = status.worker.figures;
  by("script").hidden = figures.length === 0;
  for (const name of scriptCurves.keys()) if (!figures.some((one) => one.name === name)) scriptCurves.delete(name);
  keyed(by("script-figures"), figures, (one) => one.name, makeFigure, (node, one) => {
    const { curve, seenRound } = scriptCurves.get(one.name);
    if (one.value !== null && one.round !== seenRound) {
      curve.add(status.uptime_s, one.value);
      scriptCurves.get(one.name).seenRound = one.round;
    }
    if (curve.samples.length) {
      curve.draw();
      const values = curve.samples.map((sample) => sample[1]);
      write(node.children[2], `from ${shown(Math.min(...values))} to ${shown(Math.max(...values))}`);
    }
    const value = one.value === null ? "not finite" : shown(one.value);
    write(node.children[0], `${plain(one.name)}: ${value} (round ${one.round})`);
  });
}

const shown = (value) => String(Number(value.toPrecision(6)));

function makeFigure(one) {
  const svg = element("svg:svg", { viewBox: "0 0 480 110", preserveAspectRatio: "none", "aria-hidden": "true" });
  scriptCurves.set(one.name, { curve: new Curve(svg, 1, false), seenRound: null });
  return element("div", {}, element("h3"), svg, element("p", { class: "quiet" }));
}

/** The processes of this site, where its worker is a worker group; null: it is not. */
function showGroup(group) {
  by("group").hidden = group === null;
  if (group === null) return;
  const run = group.run ? `; in its run: ${plain(group.run)}` : "";
  write(by("group-text"), `${plain(group.command)}: ${plain(group.phase)}, step ${group.step}, plan ${group.generation} ${plain(group.shape)}${run}`);
  keyed(by("group-workers"), group.workers, (one) => one.worker, makeWorkerRow, (row, one) => {
    cell(row, 0, String(one.worker), "number");
    cell(row, 1, String(one.pid), "number");
    cell(row, 2, plain(one.device), "tight");
    cell(row, 3, plain(one.stage) || "-", "tight");
    cell(row, 4, plain(one.state), one.state === "trains" ? "tight good" : "tight warn");
    cell(row, 5, duration(Math.max(0, group.written - one.since)), "number");
    cell(row, 6, plain(one.doing), "tight");
  });
}

const makeWorkerRow = () => element("tr", {}, ...Array.from({ length: 7 }, () => element("td")));

function showLinks(status) {
  const tree = treeOf(status);
  by("no-links").hidden = status.links.length > 0;
  keyed(by("links"), status.links, (link) => `${link.one} ${link.other}`, makeLinkRow, (row, link) => {
    const [ends, why] = row.children[0].children;
    write(ends, `${nameOf(link.one)} \u2013 ${nameOf(link.other)}`);
    write(why, link.why ? ` ${plain(link.why)}` : "");
    cell(row, 1, link.up === null ? UNKNOWN : link.up ? "up" : "down", `tight${link.up === null ? "" : link.up ? " good" : " bad"}`);
    cell(row, 2, rate(link.rate_bytes_per_s), "number");
    cell(row, 3, milliseconds(link.rtt_s), "number");
    cell(row, 4, link.streams ? `${link.streams} ${plain(link.congestion)}`.trim() : "");
    cell(row, 5, tree.has(link) ? "used" : "");
    const button = row.children[6].firstChild;
    const far = farEnd(status, link);
    button.hidden = far === null || status.state !== "member" || !status.sites.some((site) => site.site === far);
    if (far !== null) button.setAttribute("aria-label", `Remove the link to ${nameOf(far)}`);
  });
}

const farEnd = (status, link) => (link.one === status.site ? link.other : link.other === status.site ? link.one : null);

function makeLinkRow(link) {
  const button = element("button", { type: "button" }, "Remove ...");
  button.onclick = () => askLink(seen.status, nameOf, farEnd(seen.status, link), false);
  const ends = element("td", { class: "name" }, element("span"), element("span", { class: "bad" }));
  return element("tr", {}, ends, ...["td", "td", "td", "td", "td"].map((name) => element(name)), element("td", {}, button));
}

function showTransfer(status) {
  const transfer = status.transfer;
  by("transfer").hidden = transfer === null;
  if (transfer === null) return;
  const [done, whole] = [transfer.verified_bytes, transfer.total_bytes];
  by("transfer-bar").value = whole ? done / whole : 0;
  const speed = Object.values(transfer.rate_of_source).reduce((total, one) => total + one, 0);
  const left = speed > 0 && done < whole ? `, ${Math.ceil((whole - done) / speed)} s left` : "";
  write(by("transfer-text"), `state of round ${transfer.round}: ${bytes(done)} of ${bytes(whole)} verified, ${rate(speed)}${left}`);
  const sources = Object.entries(transfer.rate_of_source).sort();
  keyed(by("transfer-sources"), sources, ([site]) => site, () => element("li", { class: "source" }, element("progress", { max: 1, value: 0 }), element("span")), (row, [site, one]) => {
    const [bar, text] = row.children;
    const sent = transfer.bytes_of_source[site] ?? 0;
    bar.value = whole ? sent / whole : 0;
    bar.setAttribute("aria-label", `share that ${nameOf(site)} has sent`);
    write(text, `from ${nameOf(site)}: ${bytes(sent)}, ${rate(one)}`);
  });
}

function showEvents() {
  keyed(by("events"), seen.events, (record) => record.id, makeEventRow, () => {});
}

function makeEventRow(record) {
  const cells = [
    [clock(record.at_unix_s), "tight"],
    [plain(record.kind), "tight"],
    [plain(record.outcome), record.outcome === "done" ? "good" : record.outcome ? "bad" : ""],
    [took(record.duration_s), "number"],
    [String(record.round), "number"],
    [record.subject ? subjectOf(record.subject) : "", "name"],
    [[record.cause, record.reason].filter(Boolean).map(plain).join(" \u00b7 "), "why"],
  ];
  const row = element("tr", { title: `event ${record.id}, ${plain(record.event_id)}, epoch ${record.epoch}` });
  for (const [text, names] of cells) row.append(element("td", names ? { class: names } : {}, text));
  return row;
}

const subjectOf = (subject) => (/^[0-9a-f]{8,32}$/.test(subject) ? `${nameOf(subject)} (${short(subject)})` : plain(subject));

// -- whether anybody tells

function showConnection() {
  const now = Date.now();
  const since = seen.heardMs ? new Date(seen.heardMs).toLocaleTimeString([], { hour12: false }) : null;
  let [word, names, alarm] = ["live", "badge good", ""];
  if (seen.shut) {
    [word, names] = ["closed", "badge bad"];
    alarm = "The daemon was started anew, or this browser's session is over. Run `chaosd page` and open the address that it prints.";
  } else if (seen.ended !== null) {
    [word, names] = ["ended", "badge warn"];
    alarm = `The daemon has ended (${plain(seen.ended)}). What stands below is what it said last${since ? `, at ${since}` : ""}. To start it: chaosd start`;
  } else if (seen.brokenMs !== null) {
    [word, names] = ["no daemon", "badge bad"];
    alarm = `The daemon does not answer: it was killed, or the way to it is cut. What stands below is what it said last${since ? `, at ${since}` : ""}. To start it: chaosd start`;
  } else if (seen.heardMs && now - seen.heardMs > SILENT_AFTER_MS) {
    [word, names] = ["silent", "badge bad"];
    alarm = `The daemon has said nothing for ${Math.round((now - seen.heardMs) / 1000)} s: it is stopped, or overloaded. What stands below is old.`;
  } else if (!seen.heardMs) [word, names] = ["connecting", "badge"];
  write(by("connection"), word);
  classes(by("connection"), names);
  by("alarm").hidden = !alarm;
  write(by("alarm"), alarm);
  classes(document.querySelector("main"), alarm ? "stale" : "");
}

// -- begin

by("leave").onclick = () => seen.status && askLeave(seen.status, nameOf);
history.replaceState(null, "", "/"); // the ticket is spent; it shall not lie in the history
setInterval(showConnection, 500);
comeBackNow();

async function comeBackNow() {
  try {
    seen.shut = !(await begin());
    if (!seen.shut) open();
  } catch {
    comeBack();
  }
  showConnection();
}
