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
