// What stands, who is waited for, and what an operator can do: why rounds pause, who counts with weight 0, who was not let
// in, where the newest checkpoint is, how a second site joins.

import { classes, duration, element, keyed, plain, rate, short, write } from "./text.js";

export const OLD_S = 2; // what a site said longer ago is shown with its age, as `chaosd status` does

const by = (id) => document.getElementById(id);

export function showStanding(status, names) {
  showPause(status);
  showAbsent(status);
  showRefused(status, names);
  showStored(status.storage);
  showAveraging(status);
  showEncoding(status.averaging, names);
  showAlone(status);
}

function showPause(status) {
  by("paused").hidden = !status.paused;
  if (!status.paused) return;
  write(by("paused-why"), `paused: ${plain(status.paused)}`);
  const waits = status.paused_for ? `Waits for ${plain(status.paused_for)}, for ${duration(status.paused_s)}. ` : "";
  write(by("paused-more"), status.paused_remedy ? `${waits}What to do: ${plain(status.paused_remedy)}.` : waits);
}

/** Whom a round waits for, and who counts with weight 0 though its worker has the state. */
function showAbsent(status) {
  const reason = (one) => (one.reason ? `: ${plain(one.reason)}` : "");
  const lines = [
    ...status.waits_for.map((one) => `waits for ${plain(one.name)}, for ${duration(one.seconds)} without its part of round ${status.round + 1}${reason(one)}`),
    ...status.resting.map((one) => `weight 0: ${plain(one.name)}, for ${duration(one.seconds)}${reason(one)}`),
    ...(status.skips ? [`weight 0: this site: ${plain(status.skips)}`] : []),
  ];
  by("absent").hidden = lines.length === 0;
  keyed(by("absent"), lines.entries(), ([number]) => number, () => element("li"), (node, [, line]) => write(node, line));
}

/** Strangers stand where they can be let in; these are refused for another cause. */
function showRefused(status, names) {
  const refused = status.refused.filter((one) => one.cause !== "untrusted" && !status.blocked.includes(one.site));
  by("refused-part").hidden = refused.length === 0;
  keyed(by("refused"), refused, (one) => one.site, () => element("li"), (node, one) => {
    const called = names(one.site) === short(one.site) ? one.site : `${names(one.site)} (${one.site})`;
    write(node, `${plain(called)}, ${duration(one.ago_s)} ago: ${plain(one.reason)}`);
  });
}

function showStored(storage) {
  by("stored").hidden = storage === null;
  if (storage === null) return;
  const often = storage.interval_s ? `, one every ${Math.round(storage.interval_s)} s` : "";
  const newest = storage.checkpoint_round === null ? "none yet" : `round ${storage.checkpoint_round}${often}`;
  const failed = storage.checkpoint_failure ? `; the last try failed: ${plain(storage.checkpoint_failure)}` : "";
  write(by("f-stored"), storage.interval_s === null ? "none are written" : newest + failed);
}

function showAveraging(status) {
  const plan = status.averaging;
  by("averaging-text").hidden = plan === null || status.sites.length < 2;
  if (plan === null) return;
  const parts = [`Rounds go along ${plan.trees === 1 ? "one tree" : `${plan.trees} trees`}, ${rate(plan.rate_bytes_per_s)}`];
  if (plan.predicted_s !== null) parts.push(`${plan.predicted_s.toFixed(3)} s predicted`);
  if (plan.took_s !== null) parts.push(`${plan.took_s.toFixed(3)} s taken since this site gave its part`);
  if (status.send_limit_bytes_per_s) parts.push(`this site sends at most ${rate(status.send_limit_bytes_per_s)}`);
  write(by("averaging-text"), `${parts.join(", ")}.`);
}

/** What the encoding loses in a round, over all sites that say it; nothing in fp32. */
function showEncoding(averaging, names) {
  const known = averaging?.mean_error ?? null;
  by("encoding").hidden = known === null;
  if (known === null) return;
  const worst = `worst ${averaging.worst_error.toPrecision(2)} at ${names(averaging.worst_site)}`;
  write(by("f-encoding"), `${plain(averaging.encoding)}: mean ${known.toPrecision(2)} of ${averaging.errors_known}, ${worst}`);
}

const quoted = (word) => (/^[\w.:@=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** How a second site comes: said where nobody else is, and by the site that is in a run. */
function showAlone(status) {
  const alone = status.state === "member" && status.sites.length === 1;
  by("alone").hidden = !alone;
  if (!alone) return;
  const peer = quoted(plain(`${status.name}=${status.site}@${status.address}`));
  write(by("alone-command"), `chaosd up --run ${quoted(plain(status.run))} --peer ${peer}`);
}

/** The phase, or what it was when the site was last heard of. */
export function showPhase(node, site, phase) {
  const old = site.age_s !== null && site.age_s > OLD_S;
  write(node, old ? `${phase}, ${duration(site.age_s)} ago` : phase);
  classes(node, old ? "tight warn" : "tight");
}
