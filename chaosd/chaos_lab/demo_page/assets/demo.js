// The demo's page: what the sites do, buttons that kill one or let one join, and at the end what it was for.

import { drawOverlay } from "./overlay.js";
import { showPicture } from "./picture.js";
import { classes, element, keyed, plain, short, took, UNKNOWN, write } from "./text.js";

const SILENT_AFTER_MS = 5000;
const STAGES = {
  starting: ["starting", "badge"],
  training: ["training", "badge good"],
  ending: ["stopping together", "badge warn"],
  comparing: ["comparing", "badge warn"],
  over: ["over", "badge"],
};

const by = (id) => document.getElementById(id);
const seen = { view: null, heardMs: Date.now(), brokenMs: null, ended: null };
let secret = "";
let stream = null;

async function begin() {
  const answer = await fetch("/v1/session");
  if (!answer.ok) {
    seen.ended = "this browser is not let in any more";
    showStage();
    return;
  }
  secret = (await answer.json()).secret;
  stream = new EventSource("/v1/live");
  stream.onerror = () => (seen.brokenMs ??= Date.now()); // the browser comes back by itself while there is a demo
  take("view", (view) => {
    seen.view = view;
    show();
  });
  take("picture", showPicture);
  take("end", (reason) => {
    seen.ended = reason;
    stream.close();
    show();
  });
}

function take(kind, handle) {
  stream.addEventListener(kind, (message) => {
    seen.heardMs = Date.now();
    seen.brokenMs = null;
    handle(JSON.parse(message.data));
    showStage();
  });
}

async function wish(what, site = "") {
  const told = by("outcome");
  const head = site ? `${what} ${site}` : "stop";
  write(told, `${head}: asked ...`);
  try {
    const answer = await fetch("/v1/wish", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Chaosd-Secret": secret },
      body: JSON.stringify({ what, site }),
    });
    const outcome = await answer.json();
    write(told, `${plain(head)}: ${plain(outcome.error ?? (outcome.done ? outcome.reason : `not done: ${outcome.reason}`))}`);
  } catch {
    write(told, `${plain(head)}: the demo does not answer`);
  }
}

function nameOf(site) {
  const found = seen.view.sites.find((one) => one.site === site);
  return found ? plain(found.label) : short(plain(site));
}

function show() {
  const view = seen.view;
  if (view === null) return;
  document.title = `demo: round ${view.round}`;
  write(by("line"), `${plain(view.description)}. Round ${view.round}, ${Math.floor(view.elapsed_s)} s; network: ${plain(view.network)}`);
  const ended = seen.ended !== null;
  by("finish").hidden = !view.may_finish || ended;
  keyed(by("sites"), view.sites, (site) => site.name, makeSite, (row, site) => showSite(row, site, view, ended));
  if (view.status !== null) {
    const labelled = view.status.sites.map((site) => ({ ...site, name: nameOf(site.site) }));
    drawOverlay(by("overlay"), { ...view.status, sites: labelled }, nameOf);
    write(by("overlay-text"), `As ${nameOf(view.status.site)} sees it. Thick: the tree of the next round, a dot at its root; a ring: the scheduler.`);
  }
  keyed(by("told"), [...view.incidents].reverse(), (one) => `${one.at_s} ${one.text}`, makeTold, (row, one) => {
    write(row.children[0], `${one.at_s.toFixed(1)} s`);
    write(row.children[1], plain(one.text));
    write(row.children[2], took(one.took_s));
    write(row.children[3], plain(one.outcome) || "...");
  });
}

function makeSite(site) {
  const kill = element("button", { type: "button", class: "grave" }, "Kill");
  kill.onclick = () => wish("kill", site.name);
  const join = element("button", { type: "button" }, "Join");
  join.onclick = () => wish("join", site.name);
  const link = element("a", { href: `/site/${encodeURIComponent(site.name)}`, target: "_blank", rel: "noopener" }, "its page");
  const cells = ["name", "tight", "number", "tight"].map((names) => element("td", { class: names }));
  return element("tr", {}, ...cells, element("td", { class: "actions" }, kill, join, " ", link));
}

function showSite(row, site, view, ended) {
  write(row.children[0], plain(site.label));
  write(row.children[1], plain(site.state));
  classes(row.children[1], `tight ${site.state === "member" ? "good" : "warn"}`);
  write(row.children[2], String(site.round ?? UNKNOWN));
  write(row.children[3], plain(site.phase ?? UNKNOWN));
  const [kill, join, link] = row.children[4].children;
  kill.hidden = !site.runs;
  join.hidden = site.runs;
  link.hidden = !site.runs || !view.own_pages || ended;
  for (const [button, what] of [[kill, "Kill"], [join, "Let join"]]) {
    button.disabled = ended || site.why_not !== "";
    button.title = plain(site.why_not);
    button.setAttribute("aria-label", `${what} ${plain(site.label)}`);
  }
}

const makeTold = () => element("tr", {}, element("td", { class: "number" }), element("td"), element("td", { class: "number" }), element("td", { class: "why" }));

function showStage() {
  const now = Date.now();
  const broken = seen.brokenMs !== null && now - seen.brokenMs > SILENT_AFTER_MS;
  const stage = seen.view?.stage ?? "starting";
  let [word, names] = STAGES[stage] ?? [plain(stage), "badge"];
  let alarm = "";
  if (seen.ended !== null) {
    [word, names] = ["over", "badge"];
    if (by("gain").hidden) alarm = `The demo is over: ${plain(seen.ended)}. What stands below is what it said last.`;
  } else if (broken || (stage === "training" && now - seen.heardMs > SILENT_AFTER_MS)) {
    [word, names] = ["no answer", "badge bad"];
    alarm = "The demo does not answer: it was ended, or stopped. What stands below is what it said last.";
  }
  write(by("stage"), word);
  classes(by("stage"), names);
  by("alarm").hidden = !alarm;
  write(by("alarm"), alarm);
}

by("finish").onclick = () => wish("finish");
history.replaceState(null, "", "/"); // the ticket is spent; it shall not lie in the history
setInterval(showStage, 500);
begin();
