/* The liveness graph of a moment: what made the live storages, what they are, what keeps them.

Storages that differ only in the number of their layer are drawn as one. */

const KEEPER_ROWS = 14;
const KEEPER = { row: 46, width: 1096, box: 294, gap: 104 };

function keeperGroups(data, moment) {
  const groups = new Map();
  for (const i of data.aliveAt(moment)) {
    const category = data.categoryAt(i, moment);
    const module = folded(data.text("module", i)) || OUTSIDE;
    const made = data.opText("target", i) || "before the first operation";
    const keeper = data.keeperOf(i, moment);
    const key = [category, module, made, keeper, data.text("shape", i), data.text("dtype", i)];
    const group = groups.get(key.join("\n")) || {
      storages: [], bytes: 0, category, module, made, keeper, until: -1,
      tensor: `${data.text("dtype", i)} [${data.text("shape", i)}]`,
    };
    group.storages.push(i);
    group.bytes += data.block[i];
    group.until = Math.max(group.until, data.last[i]);
    groups.set(key.join("\n"), group);
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
}

function showKeepers(page) {
  const { data, state } = page;
  const all = keeperGroups(data, state.moment);
  const groups = all.slice(0, KEEPER_ROWS);
  const makers = sideNodes(groups, (group) => [group.made, group.module]);
  const keepers = sideNodes(groups, (group) => {
    return [group.keeper.replace(/^saved by /, ""), keptUntil(data, group)];
  });
  const sides = [...makers.values(), ...keepers.values()].map((node) => node.y);
  const height = Math.max(KEEPER.row * groups.length, ...sides, 0) + KEEPER.row;
  const picture = drawing("svg", { viewBox: `0 0 ${KEEPER.width} ${height}`, role: "group" });
  ["made by", "alive", "kept alive by"].forEach((title, column) => {
    picture.append(drawing("text", { x: columnX(column), y: 16, class: "title" }, title));
  });
  groups.forEach((group, row) => {
    const y = 30 + row * KEEPER.row;
    const colour = CATEGORY_COLOURS[group.category];
    picture.append(edge(1, makers.get(makers.keyOf(group)).y, y, colour, group.bytes));
    picture.append(edge(2, y, keepers.get(keepers.keyOf(group)).y, colour, group.bytes));
  });
  for (const node of makers.values()) picture.append(keeperBox(0, node.y, node.lines, null));
  for (const node of keepers.values()) picture.append(keeperBox(2, node.y, node.lines, null));
  groups.forEach((group, row) => picture.append(storageBox(page, group, 30 + row * KEEPER.row)));
  const rest = all.slice(KEEPER_ROWS).reduce((sum, group) => sum + group.bytes, 0);
  const note = rest
    ? `${formatBytes(rest)} in ${all.length - KEEPER_ROWS} smaller groups are not drawn.` : "";
  const holder = document.getElementById("keepers");
  const isFirst = !holder.childElementCount;
  fill(holder, picture);
  // On a narrow screen the storages come first; their makers are to the left.
  if (isFirst && holder.scrollWidth > holder.clientWidth) {
    holder.scrollLeft = (holder.scrollWidth * columnX(1)) / KEEPER.width - 8;
  }
  replaceChildren("keepers-note", note);
}

/* The nodes of an outer column, each at the mean height of its connected storages. */
function sideNodes(groups, linesOf) {
  const nodes = new Map();
  nodes.keyOf = (group) => linesOf(group).join("\n");
  groups.forEach((group, row) => {
    const key = nodes.keyOf(group);
    const node = nodes.get(key) || { lines: linesOf(group), rows: [] };
    node.rows.push(row);
    nodes.set(key, node);
  });
  const mean = (node) => node.rows.reduce((sum, row) => sum + row, 0) / node.rows.length;
  let y = 30;
  for (const node of [...nodes.values()].sort((a, b) => mean(a) - mean(b))) {
    node.y = Math.max(y, 30 + mean(node) * KEEPER.row);
    y = node.y + KEEPER.row;
  }
  return nodes;
}

function keptUntil(data, group) {
  if (group.until >= data.momentCount) return "outlives the trace";
  return `until ${phaseName(data.phaseAt(group.until))}`;
}

function columnX(column) {
  return 2 + column * (KEEPER.box + KEEPER.gap);
}

function edge(column, from, to, colour, bytes) {
  const start = columnX(column) - KEEPER.gap;
  const end = columnX(column);
  const bend = (start + end) / 2;
  const [y0, y1] = [from + 18, to + 18];
  const width = Math.min(14, 1.5 + Math.log2(1 + bytes / 2 ** 20));
  return drawing("path", {
    d: `M${start} ${y0} C${bend} ${y0} ${bend} ${y1} ${end} ${y1}`,
    fill: "none", stroke: colour, "stroke-opacity": 0.45, "stroke-width": width,
  });
}

function keeperBox(column, y, lines, colour) {
  const x = columnX(column);
  const parts = [drawing("rect", {
    x, y, width: KEEPER.box, height: 38, rx: 6, class: "node",
    ...(colour ? { style: `stroke:${colour}` } : {}),
  })];
  if (colour) parts.push(drawing("rect", { x, y, width: 7, height: 38, rx: 3, fill: colour }));
  lines.forEach((line, i) => {
    const at = { x: x + 15, y: y + 16 + 15 * i, class: i ? "second" : "first" };
    parts.push(drawing("text", at, shortened(line, i ? 44 : 36)));
  });
  parts.push(drawing("title", {}, lines.join("\n")));
  return drawing("g", {}, ...parts);
}

function storageBox(page, group, y) {
  const times = group.storages.length > 1 ? ` in ${group.storages.length} storages` : "";
  const lines = [`${formatBytes(group.bytes)}${times}`, `${group.tensor}  ${group.module}`];
  const box = keeperBox(1, y, lines, CATEGORY_COLOURS[group.category]);
  box.setAttribute("role", "button");
  box.setAttribute("class", "storage-node");
  const select = () => page.select(group.storages[0]);
  box.addEventListener("click", select);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    select();
  });
  return box;
}
