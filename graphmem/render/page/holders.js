/* The table of storages alive at a moment, or their sums by module, line, operation, keeper. */

const ROWS_AT_FIRST = 25;

const GROUPINGS = {
  module: (data, i) => data.text("module", i) || OUTSIDE,
  "module, layers together": (data, i) => folded(data.text("module", i)) || OUTSIDE,
  line: (data, i) => data.opText("source", i) || "(before the first operation)",
  operation: (data, i) => data.opText("target", i) || "(before the first operation)",
  "what keeps it": (data, i, moment) => data.keeperOf(i, moment),
};

function showHolders(page) {
  const { data, state } = page;
  const alive = data.aliveAt(state.moment).filter((i) => !state.found || state.found[i]);
  const bytes = alive.reduce((sum, i) => sum + data.block[i], 0);
  replaceChildren(
    "holders-sum",
    `${alive.length.toLocaleString("en-US")} storages, ${formatBytes(bytes)} in total`,
  );
  const rows = state.groupBy === "storage"
    ? storageRows(page, alive) : groupRows(page, alive, GROUPINGS[state.groupBy]);
  const shown = rows.slice(0, state.rows).map((row) => row());
  fill(document.getElementById("holders-body"), ...shown);
  const more = document.getElementById("more-rows");
  more.hidden = rows.length <= state.rows;
  more.textContent = `Show more of ${rows.length.toLocaleString("en-US")} rows`;
}

function storageRows(page, alive) {
  const { data, state } = page;
  const names = ["bytes", "what", "module", "why it is alive"];
  replaceChildren("holders-head", ...headings(names, [0]));
  return alive
    .sort((a, b) => data.bytes[b] - data.bytes[a] || data.first[a] - data.first[b])
    .map((i) => () => {
      const source = data.opText("source", i);
      const category = data.categoryAt(i, state.moment);
      const name = element(
        "button",
        { type: "button", class: "link", onclick: () => page.select(i) },
        `${data.text("dtype", i)} [${data.text("shape", i)}]`,
      );
      return element(
        "tr",
        { "data-bytes": data.bytes[i], "aria-current": i === state.storage ? "true" : null },
        element("td", { class: "number", title: formatExact(data.bytes[i]) },
          formatBytes(data.bytes[i])),
        element("td", {}, swatchOf(category), name),
        element("td", {}, data.text("module", i) || OUTSIDE,
          source ? element("small", { title: source }, baseName(source)) : null),
        element("td", {}, data.text("reason", i)),
      );
    });
}

function swatchOf(category) {
  return element("span", {
    class: "swatch", title: CATEGORY_NAMES[category],
    style: `background:${CATEGORY_COLOURS[category]}`,
  });
}

function groupRows(page, alive, nameOf) {
  const { data, state } = page;
  const names = ["bytes", state.groupBy, "storages", "of what"];
  replaceChildren("holders-head", ...headings(names, [0, 2]));
  const groups = new Map();
  for (const i of alive) {
    const name = nameOf(data, i, state.moment);
    const node = groups.get(name) || { name, bytes: 0, count: 0, categories: new Map() };
    addTo(node, data.categoryAt(i, state.moment), data.block[i]);
    node.count += 1;
    groups.set(name, node);
  }
  const sorted = [...groups.values()].sort((a, b) => b.bytes - a.bytes);
  return sorted.map((node) => () => {
    const share = (100 * node.bytes) / sorted[0].bytes;
    const bar = element("div", {
      class: "bar", style: `width:${share}%;background:${stripes(node)}`,
      role: "img", "aria-label": categoriesInWords(node), title: categoriesInWords(node),
    });
    return element(
      "tr",
      { "data-bytes": node.bytes },
      element("td", { class: "number", title: formatExact(node.bytes) }, formatBytes(node.bytes)),
      element("td", {}, node.name),
      element("td", { class: "number" }, node.count.toLocaleString("en-US")),
      element("td", { class: "wide" }, bar),
    );
  });
}

function headings(names, numbers) {
  return names.map((name, i) =>
    element("th", { scope: "col", class: numbers.includes(i) ? "number" : null }, name));
}
