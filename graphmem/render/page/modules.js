/* The module tree of the bytes at a moment, as an icicle; each box is striped by category. */

const ICICLE_ROWS = 6;
const LEAST_BOX_PIXELS = 3;

function moduleTree(data, moment) {
  const root = { name: "", path: "", bytes: 0, children: new Map(), categories: new Map() };
  for (const i of data.aliveAt(moment)) {
    const module = data.text("module", i);
    const category = data.categoryAt(i, moment);
    let node = root;
    addTo(node, category, data.block[i]);
    for (const name of module ? module.split(".") : [OUTSIDE]) {
      if (!node.children.has(name)) {
        const path = node.path ? `${node.path}.${name}` : name;
        node.children.set(name, {
          name, path, bytes: 0, children: new Map(), categories: new Map(),
        });
      }
      node = node.children.get(name);
      addTo(node, category, data.block[i]);
    }
  }
  return root;
}

function addTo(node, category, bytes) {
  node.bytes += bytes;
  node.categories.set(category, (node.categories.get(category) || 0) + bytes);
}

function showModules(page) {
  const root = moduleTree(page.data, page.state.moment);
  let focus = root;
  const names = page.state.modulePath ? page.state.modulePath.split(".") : [];
  if (page.state.modulePath === OUTSIDE) names.splice(0, names.length, OUTSIDE);
  for (const name of names) focus = focus.children.get(name) || focus;
  const holder = document.getElementById("icicle");
  const width = holder.clientWidth || 900;
  const boxes = [];
  const place = (node, left, share, row) => {
    if (row > ICICLE_ROWS || share * width < LEAST_BOX_PIXELS) return;
    boxes.push(moduleBox(page, root, node, left, share, row, share * width));
    let at = left;
    for (const child of node.children.values()) {
      const part = (share * child.bytes) / node.bytes;
      place(child, at, part, row + 1);
      at += part;
    }
  };
  if (focus.bytes) place(focus, 0, 1, 0);
  const deepest = Math.max(0, ...boxes.map((box) => Number(box.dataset.row)));
  holder.style.height = `${(deepest + 1) * 34}px`;
  fill(holder, ...boxes);
  showModulePath(page, focus);
}

function moduleBox(page, root, node, left, share, row, pixels) {
  const label = `${node.path || "whole model"}: ${formatBytes(node.bytes)}, `
    + `${formatShare(node.bytes, root.bytes)} of this moment; ${categoriesInWords(node)}`;
  const box = element(
    "button",
    {
      type: "button",
      class: "box",
      "data-row": row,
      title: label,
      "aria-label": label,
      style: `left:${100 * left}%;width:${100 * share}%;top:${row * 34}px;`
        + `background:${stripes(node)}`,
      onclick: () => page.focusModule(node.path),
    },
  );
  if (pixels > 34) box.append(element("span", {}, node.name || "model"));
  if (pixels > 150) box.append(element("small", {}, formatBytes(node.bytes)));
  return box;
}

function sortedCategories(node) {
  return CATEGORY_ORDER.filter((name) => node.categories.has(name)).map(
    (name) => [name, node.categories.get(name)],
  );
}

function categoriesInWords(node) {
  return sortedCategories(node)
    .sort((a, b) => b[1] - a[1])
    .map(([name, bytes]) => `${CATEGORY_NAMES[name]} ${formatBytes(bytes)}`)
    .join(", ");
}

function stripes(node) {
  let at = 0;
  const stops = sortedCategories(node).map(([name, bytes]) => {
    const from = at;
    at += (100 * bytes) / node.bytes;
    return `${CATEGORY_COLOURS[name]} ${from}% ${at}%`;
  });
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

function showModulePath(page, focus) {
  const crumbs = [["model", ""]];
  const names = focus.path && focus.path !== OUTSIDE ? focus.path.split(".") : [];
  names.forEach((name, i) => crumbs.push([name, names.slice(0, i + 1).join(".")]));
  if (focus.path === OUTSIDE) crumbs.push([OUTSIDE, OUTSIDE]);
  const buttons = crumbs.map(([name, path]) =>
    element("button", { type: "button", class: "crumb", onclick: () => page.focusModule(path) },
      name));
  replaceChildren("module-path", ...buttons, element("span", {}, formatBytes(focus.bytes)));
}

function showCategories(page) {
  const { data, state } = page;
  const node = { bytes: 0, categories: new Map() };
  for (const i of data.aliveAt(state.moment)) {
    addTo(node, data.categoryAt(i, state.moment), data.bytes[i]);
  }
  const rest = data.moments.allocated[state.moment] - node.bytes;
  if (rest) addTo(node, "rounding", rest);
  document.getElementById("category-bar").style.background = stripes(node);
  const items = sortedCategories(node).sort((a, b) => b[1] - a[1]).map(([name, bytes]) =>
    element(
      "li",
      { "data-category": name, "data-bytes": bytes },
      element("span", { class: "swatch", style: `background:${CATEGORY_COLOURS[name]}` }),
      element("span", {}, CATEGORY_NAMES[name]),
      element("b", {}, formatBytes(bytes)),
      element("small", {}, formatShare(bytes, node.bytes)),
    ));
  replaceChildren("categories", ...items);
}
