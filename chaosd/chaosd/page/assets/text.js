// Words, numbers and elements. What comes from sites is shown as text: nothing here makes markup of it.

export const UNKNOWN = "\u2013";
const SVG = "http://www.w3.org/2000/svg";
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}]/gu; // controls, and marks that turn the direction of text

/** A name or a reason as it may be shown: nothing in it hides, or reorders what stands beside it. */
export const plain = (text) => String(text ?? "").replace(INVISIBLE, "\ufffd");

export const short = (site) => site.slice(0, 8);

export function element(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  for (const child of children) made.append(child);
  return made;
}

/** Write only what differs: a reader's selection and a screen reader's place stay. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function classes(node, names) {
  if (node.getAttribute("class") !== names) node.setAttribute("class", names);
}

/** Rows for `items` in their order, each made once for its key and then updated, so that the focus is not lost. */
export function keyed(parent, items, keyOf, make, update) {
  const rows = (parent.rowOf ??= new Map());
  const seen = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    seen.add(key);
    let row = rows.get(key);
    if (!row) rows.set(key, (row = make(item)));
    update(row, item);
    if (row === place) place = place.nextElementSibling;
    else parent.insertBefore(row, place);
  }
  for (const [key, row] of rows) {
    if (!seen.has(key)) {
      row.remove();
      rows.delete(key);
    }
  }
}

export function bytes(count) {
  if (count === null || count === undefined || !Number.isFinite(count)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0;
  while (Math.abs(count) >= 1024 && step < units.length - 1) {
    count /= 1024;
    step += 1;
  }
  return `${step === 0 ? Math.round(count) : count.toFixed(1)} ${units[step]}`;
}

export const rate = (bytesPerSecond) =>
  bytesPerSecond === null || bytesPerSecond === undefined ? UNKNOWN : `${((bytesPerSecond * 8) / 1e6).toFixed(1)} Mbit/s`;

export const milliseconds = (seconds) => (seconds === null || seconds === undefined ? UNKNOWN : `${(seconds * 1e3).toFixed(1)} ms`);

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

/** Seconds of a second's fraction as people say them. */
export const took = (seconds) => (seconds === null || seconds === undefined ? "" : `${seconds.toFixed(seconds < 10 ? 3 : 1)} s`);

export function clock(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString()} `;
  return day + at.toLocaleTimeString([], { hour12: false });
}
