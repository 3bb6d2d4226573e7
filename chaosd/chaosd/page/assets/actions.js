// What an operator may do: each button first says what will come of it, and asks.

import { element, plain, write } from "./text.js";

const REASON = "asked for on the page";

let secret = "";

/** The secret that every change carries; false when this browser is not let in (any more). */
export async function begin() {
  const answer = await fetch("/v1/session");
  if (answer.status === 401) return false;
  if (!answer.ok) throw new Error(`the daemon answered ${answer.status}`);
  secret = (await answer.json()).secret;
  return true;
}

/** Ask with `lines` as the consequence; on yes POST `body` to `target`, and say how it ended. */
export function ask({ title, lines, yes, target, body }) {
  const dialog = document.getElementById("ask");
  write(document.getElementById("ask-title"), title);
  document.getElementById("ask-text").replaceChildren(...lines.map((line) => element("p", {}, line)));
  const confirm = document.getElementById("ask-yes");
  write(confirm, yes);
  document.getElementById("ask-no").onclick = () => dialog.close();
  confirm.onclick = async () => {
    dialog.close();
    await change(title, target, body);
  };
  dialog.showModal();
  document.getElementById("ask-no").focus(); // what Enter does unseen is nothing
}

async function change(title, target, body) {
  const told = document.getElementById("outcome");
  write(told, `${title}: asked ...`);
  try {
    const answer = await fetch(target, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Chaosd-Secret": secret },
      body: JSON.stringify(body),
    });
    const outcome = await answer.json();
    const words = outcome.error ?? `${outcome.done ? "done" : "not done"} after ${outcome.duration_s.toFixed(3)} s: ${outcome.reason}`;
    write(told, `${title}: ${plain(words)}`);
  } catch {
    write(told, `${title}: no answer from the daemon; the events say what became of it`);
  }
}

/** What follows if this site leaves. */
export function askLeave(status, names) {
  const others = status.sites.filter((site) => site.site !== status.site && site.state === "member");
  const level = others.filter((site) => site.phase !== null && site.phase !== "standby");
  const lines = [
    `${names(status.site)} takes part until the running round is done; then this daemon and its training script end, and this page with them.`,
    others.length
      ? `${others.length} other ${others.length === 1 ? "site goes" : "sites go"} on without it.`
      : "No other site is a member: the run ends here, and what was trained is only in what the script or a checkpoint saved.",
  ];
  if (others.length && !level.length) lines.push("None of them is known to have a worker with the training state: the run may have to wait for one, or begin from a checkpoint.");
  lines.push("To come back: chaosd start, and the script again. It then gets the state from the others.");
  ask({ title: `Leave run ${plain(status.run)}`, lines, yes: "Leave the run", target: "/v1/leave", body: { reason: "asked for on the page" } });
}

/** What follows if a link of this site is added or removed. */
export function askLink(status, names, far, add) {
  const name = names(far);
  const lines = add
    ? [`This site and ${name} connect, measure the link, and the plan uses it from a coming round on. Training does not pause.`]
    : [
        `The link to ${name} is closed and the plan does without it from a coming round on. Both sites stay in the run; training does not pause.`,
        stillConnected(status, far)
          ? "The overlay stays connected without it."
          : "This link holds the overlay together: the removal would split it, and will be refused.",
      ];
  ask({ title: `${add ? "Add" : "Remove"} the link to ${name}`, lines, yes: add ? "Add the link" : "Remove the link", target: "/v1/link", body: { site: far, add } });
}

/** What follows if a site that waits is let in. `reason` holds its id in words. */
export function askAccept(stranger) {
  const lines = [
    `Call the institution that says it is ${stranger.site}. If it reads out the words below, it is that site; otherwise it is somebody else.`,
    plain(stranger.reason),
    "It may then connect to this site, at once and after a restart, and whoever one member lets connect can join the run.",
  ];
  ask({ title: `Let ${stranger.site.slice(0, 8)} in`, lines, yes: "They agree: let it in", target: "/v1/accept", body: { site: stranger.site } });
}

/** What follows if a site that waits, or one of the run, has no link with this site any more. */
export function askBlock(status, names, site) {
  const [name, ofRun] = [names(site), status.sites.some((one) => one.site === site)];
  const linked = status.links.some((link) => [link.one, link.other].includes(site) && [link.one, link.other].includes(status.site));
  const lines = ofRun
    ? [
        `${linked ? `The link to ${name} ends at once` : `This site has no link to ${name} now`}, and none comes about from now on, also after a restart. It holds at this site alone.`,
        `${name} stays in the run as long as another site has a link with it.`,
      ]
    : ["It is turned away from now on, also after a restart, and does not stand here as waiting any more."];
  if (linked && ofRun && !stillConnected(status, site)) lines.push("This link holds the overlay together: without it, the part that lacks a majority of the votes is left out of the run.");
  lines.push("To take it back: the list of blocked sites on this page, or chaosd unblock.");
  ask({ title: `Block ${name}`, lines, yes: `Block ${name}`, target: "/v1/block", body: { site, reason: REASON } });
}

/** What follows if this site's operator wants a site out of the run. `waitedFor`: it is the slowest. */
export function askBan(status, names, site, waitedFor) {
  const name = names(site);
  const voices = status.sites.filter((one) => one.site !== site && one.state === "member").length;
  const needed = Math.floor(voices / 2) + 1;
  const alone = voices === 1 && status.sites.some((one) => one.site === status.site && one.state === "member");
  const lines = alone ? [
    `${name} is blocked at this site at once. No other member has a say in that, so this word alone removes it from the run, for good: its key is never let in again.`,
    "What it has given so far stays in the model.",
  ] : [
    `${name} is blocked at this site at once. As soon as the operators of ${needed} of the ${voices} other ${voices === 1 ? "member" : "members"} have said the same, each at their own site, it is removed from the run, for good: its key is never let in again.`,
    "What it has given so far stays in the model. Until it is removed, chaosd unblock takes the word back.",
  ];
  if (waitedFor) lines.unshift(`The others wait for ${name} now. If its script hangs, nothing has to be done: after straggler_timeout it counts with weight 0 until it is back.`);
  ask({ title: `Drop ${name} from the run`, lines, yes: `Say that ${name} is to go`, target: "/v1/block", body: { site, ban: true, reason: REASON } });
}

/** What follows if a block is taken back. */
export function askUnblock(names, site) {
  const lines = ["It may connect again, if it is trusted, a peer, or a site of the run. If it was to be dropped from the run, that word of this site is taken back, too; a removal that is done stays."];
  ask({ title: `Unblock ${names(site)}`, lines, yes: "Let it connect", target: "/v1/block", body: { site, add: false } });
}

/** Whether every site of the roster can still be reached without the link between this site and `far`. */
export function stillConnected(status, far) {
  const near = new Map(status.sites.map((site) => [site.site, []]));
  for (const link of status.links) {
    const pair = [link.one, link.other];
    if (pair.includes(far) && pair.includes(status.site)) continue;
    if (!near.has(link.one) || !near.has(link.other)) continue;
    near.get(link.one).push(link.other);
    near.get(link.other).push(link.one);
  }
  const seen = new Set([status.site]);
  const next = [status.site];
  while (next.length) {
    for (const site of near.get(next.pop()) ?? []) {
      if (!seen.has(site)) {
        seen.add(site);
        next.push(site);
      }
    }
  }
  return [...near.keys()].every((site) => seen.has(site));
}
