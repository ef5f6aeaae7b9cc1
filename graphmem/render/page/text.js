/* Words, numbers and elements. Text reaches the page only through textContent, never as HTML. */

const CATEGORY_ORDER = Object.keys(CATEGORY_NAMES);
const OUTSIDE = "(outside any module)";

function formatBytes(count) {
  const size = Math.abs(count);
  if (size < 1024) return `${count} B`;
  for (const [unit, bytes] of [["KiB", 2 ** 10], ["MiB", 2 ** 20]]) {
    if (Math.round((size / bytes) * 10) / 10 < 1024) return `${(count / bytes).toFixed(1)} ${unit}`;
  }
  return `${(count / 2 ** 30).toFixed(3)} GiB`;
}

function formatExact(count) {
  return `${count.toLocaleString("en-US")} bytes`;
}

function formatSigned(count) {
  return `${count > 0 ? "+" : count < 0 ? "−" : "±"}${formatBytes(Math.abs(count))}`;
}

function formatShare(part, whole) {
  return `${((100 * part) / whole).toFixed(1)} %`;
}

function phaseName(phase) {
  if (!phase) return "outside any phase";
  return phase.step < 0 ? phase.name : `step ${phase.step} ${phase.name}`;
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function replaceChildren(id, ...children) {
  document.getElementById(id).replaceChildren(...children);
}

/* Fill a container whose buttons are one tab stop; the one in focus stays there. */
function fill(container, ...children) {
  const focused = buttonsIn(container).indexOf(document.activeElement);
  container.replaceChildren(...children);
  oneTabStop(container, Math.max(0, focused));
  if (focused >= 0) buttonsIn(container)[focused]?.focus({ preventScroll: true });
}

function oneTabStop(container, reached = 0) {
  const buttons = buttonsIn(container);
  const stop = Math.min(reached, buttons.length - 1);
  buttons.forEach((button, i) => (button.tabIndex = i === stop ? 0 : -1));
  container.onkeydown = moveFocus;
}

function buttonsIn(container) {
  return [...container.querySelectorAll("button, [role=button]")];
}

/* Arrow keys, Home and End go to another button of a container. */
function moveFocus(event) {
  const buttons = buttonsIn(event.currentTarget);
  const at = buttons.indexOf(event.target);
  const last = buttons.length - 1;
  const next = {
    ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: last,
  }[event.key];
  if (at < 0 || next === undefined || next < 0 || next > last) return;
  event.preventDefault();
  oneTabStop(event.currentTarget, next);
  buttons[next].focus();
}

function folded(module) {
  return module.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
}

function shortened(text, limit) {
  const letters = Array.from(text);
  return letters.length <= limit ? text : `${letters.slice(0, limit - 1).join("")}…`;
}

function baseName(source) {
  return source.split("/").pop();
}
