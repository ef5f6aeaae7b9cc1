/* Colours of categories, and of the groups of the other two ways of stacking. */

const GROUP_COLOURS = [
  "#9467bd", "#4c78a8", "#54a24b", "#f2932f", "#e0565b", "#5fb3b3", "#e3c341", "#d37fb5",
  "#8fb8dd", "#9d755d", "#7f8fd4", "#8cbf5f",
];
const OTHER_COLOUR = "#9aa0a6";

function packedColour(hex, shade = 1) {
  const number = parseInt(hex.slice(1), 16);
  const part = (shift) => Math.min(255, Math.round(((number >> shift) & 255) * shade));
  return ((255 << 24) | (part(0) << 16) | (part(8) << 8) | part(16)) >>> 0;
}

/* Each storage's group, and the groups from the bottom of the stack to its top. */
function groupsOf(data, mode) {
  if (mode === "category") return categoryGroups(data);
  const name = mode === "module"
    ? (i) => folded(data.text("module", i)) || OUTSIDE
    : (i) => data.keeperOf(i, keptMoment(data, i));
  return largestGroups(data, name);
}

function keptMoment(data, i) {
  return data.holds(i, data.peak) ? data.peak : Math.max(data.first[i], data.last[i] - 1);
}

function categoryGroups(data) {
  const present = new Set(data.category.map((text) => data.texts[text]));
  const names = CATEGORY_ORDER.filter((name) => present.has(name));
  const indexes = new Map(names.map((name, index) => [name, index]));
  return {
    groups: names.map((name) => ({ name: CATEGORY_NAMES[name], colour: CATEGORY_COLOURS[name] })),
    groupOf: Int32Array.from(data.category, (text) => indexes.get(data.texts[text])),
  };
}

function largestGroups(data, nameOf) {
  const names = Array.from({ length: data.count }, (_, i) => nameOf(i));
  const sizes = new Map();
  names.forEach((name, i) => {
    const weight = data.holds(i, data.peak) ? data.block[i] : data.block[i] * 1e-6;
    sizes.set(name, (sizes.get(name) || 0) + weight);
  });
  const largest = [...sizes].sort((a, b) => b[1] - a[1]).slice(0, GROUP_COLOURS.length);
  const indexes = new Map(largest.map(([name], index) => [name, index]));
  const groups = largest.map(([name], index) => ({ name, colour: GROUP_COLOURS[index] }));
  if (sizes.size > groups.length) groups.push({ name: "all others", colour: OTHER_COLOUR });
  const groupOf = Int32Array.from(names, (name) => indexes.get(name) ?? largest.length);
  return { groups, groupOf };
}
