/* The details of one moment and one storage. */

function storageTitle(data, i) {
  return `${formatBytes(data.bytes[i])} ${data.text("dtype", i)} [${data.text("shape", i)}]`;
}

function definition(term, value, attributes = {}) {
  return [element("dt", {}, term), element("dd", attributes, value)];
}

function showMoment(page) {
  const { data, state } = page;
  const { moment } = state;
  const { allocated, requested, reserved, op } = data.moments;
  const at = op[moment];
  const isPeak = moment === data.peak;
  const rows = [
    ...definition("allocated", formatExact(allocated[moment]), { id: "moment-allocated" }),
    ...definition("requested", formatExact(requested[moment]), { id: "moment-requested" }),
    ...definition("reserved", formatExact(reserved[moment]), { id: "moment-reserved" }),
    ...definition("phase", phaseName(data.phaseAt(moment)), { id: "moment-phase" }),
  ];
  if (at >= 0) {
    const text = (column) => data.texts[data.ops[column][at]];
    rows.push(...definition("operation", `${at.toLocaleString("en-US")}: ${text("target")}`));
    if (text("module")) rows.push(...definition("module", text("module")));
    if (text("source")) rows.push(...definition("line", text("source")));
    if (text("autograd")) rows.push(...definition("autograd", text("autograd")));
  }
  const title = isPeak ? "The peak" : "This moment";
  replaceChildren("moment", element("h3", {}, title), element("dl", {}, ...rows));
  const what = isPeak ? "the peak" : `operation ${at.toLocaleString("en-US")}`;
  for (const label of document.querySelectorAll(".at-moment")) label.textContent = what;
}

function showStorage(page) {
  const { data, state } = page;
  const i = state.storage;
  if (i < 0) {
    const hint = "Click a band of the timeline, or a row of the table, to see what it is, "
      + "who keeps it alive, and until when.";
    replaceChildren("storage", element("h3", {}, "Storage"), element("p", { class: "hint" }, hint));
    return;
  }
  const rows = [
    ...definition("bytes", formatExact(data.bytes[i]), { id: "storage-bytes" }),
    ...definition("block", formatExact(data.block[i])),
    ...definition("tensor", `${data.text("dtype", i)} [${data.text("shape", i)}]`),
    ...definition("category", CATEGORY_NAMES[data.categoryAt(i, keptMoment(data, i))]),
    ...definition("module", data.text("module", i) || OUTSIDE),
    ...definition("made by", data.opText("target", i) || "before the first operation"),
  ];
  if (data.opText("source", i)) rows.push(...definition("line", data.opText("source", i)));
  rows.push(...definition("alive", lifeOf(data, i)));
  const swatch = element("span", { class: "swatch", style: `background:${colourOf(page, i)}` });
  replaceChildren(
    "storage",
    element("h3", {}, swatch, storageTitle(data, i)),
    element("p", { id: "storage-reason", class: "reason" }, data.text("reason", i)),
    element("dl", {}, ...rows),
    element("h4", {}, "Owners: what keeps it alive, and from when to when"),
    element("ol", { class: "owners" }, ...data.ownersOf[i].map((each) => ownerItem(data, i, each))),
  );
}

function colourOf(page, i) {
  const { grouping } = page.timeline;
  return grouping.groups[grouping.groupOf[i]].colour;
}

function lifeOf(data, i) {
  const born = phaseName(data.phaseAt(data.first[i]));
  if (data.last[i] >= data.momentCount) return `from ${born} on`;
  const died = phaseName(data.phaseAt(data.last[i]));
  return born === died ? `within ${born}` : `from ${born} to ${died}`;
}

function ownerItem(data, i, owner) {
  const last = Math.min(data.last[i], data.momentCount);
  const share = (moment) => {
    const part = (Math.min(moment, last) - data.first[i]) / Math.max(1, last - data.first[i]);
    return 100 * Math.min(1, Math.max(0, part));
  };
  const from = share(owner.first);
  const style = `left:${from}%;width:${Math.max(1, share(owner.last) - from)}%`;
  const until = owner.last > data.momentCount - 1 ? "the end" : `operation ${owner.lastOp}`;
  const when = `${owner.firstOp < 0 ? "from the start" : `operation ${owner.firstOp}`} to ${until}`;
  return element(
    "li",
    {},
    element("span", { class: "kind" }, owner.kind.replace("_", " ")),
    element("span", { class: "name" }, owner.name || "an unnamed reference"),
    owner.source ? element("span", { class: "where" }, owner.source) : null,
    element("span", { class: "when" }, when),
    element("span", { class: "life", "aria-hidden": "true" }, element("i", { style })),
  );
}
