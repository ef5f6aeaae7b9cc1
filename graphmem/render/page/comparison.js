/* This run beside another: both timelines on one scale of bytes, what grew, what shrank. */

const MODULES_COMPARED = 25;

async function compareWithFile(page, file) {
  try {
    const other = JSON.parse(await file.text());
    if (!String(other.schema).startsWith("graphmem.report/")) throw new Error("not a graphmem report");
    showComparison(page, { report: other });
  } catch (error) {
    const message = `${file.name}: ${error.message}`;
    replaceChildren("comparison", element("p", { class: "error" }, message));
  }
}

/* The other run is a report alone, or has everything that this page has. */
function showComparison(page, content) {
  const { report } = page.data;
  const other = content.report;
  const otherData = content.moments ? new StepData(content) : null;
  const byPhase = (each) => Object.fromEntries(each.steps.flatMap(
    (step) => step.phases.map((phase) => [`step ${step.step} ${phase.name}`, phase.peak])));
  const named = (sums) => Object.fromEntries(
    Object.entries(sums).map(([name, bytes]) => [CATEGORY_NAMES[name] || name, bytes]));
  const peakOf = ({ peak }) => ({
    "allocated at the peak": peak.allocated,
    "requested at the peak": peak.requested,
    "reserved at the peak": peak.reserved,
  });
  const byKeeper = otherData
    ? [differences("what keeps it alive at the peak", ...[page.data, otherData].map(keeperSums), false)]
    : [];
  replaceChildren(
    "comparison",
    element("p", {}, `This page: ${nameOf(report)} on ${report.runtime.title}. `
      + `The other run: ${nameOf(other)} on ${other.runtime.title}.`),
    element("div", { id: "runs", class: "runs" }),
    differences("peak", peakOf(report), peakOf(other), true),
    differences("peak of each phase", byPhase(report), byPhase(other), true),
    differences("category at the peak",
      named(report.at_peak.by_category), named(other.at_peak.by_category), false),
    differences("module at the peak",
      ...[report, other].map((each) => withoutLayers(each.at_peak.by_module)), false),
    ...byKeeper,
  );
  page.compared = otherData ? showRuns([otherData, page.data]) : [];
}

/* The target with its options, which tell two runs of one target apart. */
function nameOf(report) {
  return `${report.target} ${report.options || ""}`.trim();
}

/* The step of the peak of each run, the other one first. */
function showRuns(runs) {
  const canvases = runs.map(({ report, moments, peak }) => element("canvas", {
    role: "img",
    "aria-label": `${nameOf(report)}: ${formatBytes(moments.allocated[peak])} allocated at the peak`,
  }));
  replaceChildren("runs", ...runs.map(({ report, moments, peak }, i) => element("figure", {},
    element("figcaption", {}, element("b", {}, i ? "this run" : "other run"),
      ` ${nameOf(report)}, ${formatBytes(moments.allocated[peak])}`),
    canvases[i])));
  const timelines = runs.map((data, i) =>
    new Timeline({ data, state: { moment: data.peak, storage: -1, found: null } }, canvases[i]));
  for (const timeline of timelines) timeline.viewPeakStep();
  const top = Math.max(...timelines.map((timeline) => timeline.highestWithCard()));
  for (const timeline of timelines) timeline.least = top;
  return timelines;
}

function keeperSums(data) {
  const sums = {};
  for (const group of keeperGroups(data, data.peak)) {
    const name = `${group.module}, ${group.keeper}`;
    sums[name] = (sums[name] || 0) + group.bytes;
  }
  return sums;
}

function withoutLayers(byModule) {
  const sums = {};
  for (const [name, bytes] of Object.entries(byModule)) {
    sums[folded(name)] = (sums[folded(name)] || 0) + bytes;
  }
  return sums;
}

function differences(title, here, there, everything) {
  const names = [...new Set([...Object.keys(here), ...Object.keys(there)])];
  let rows = names.map((name) => [name, here[name] || 0, there[name] || 0]);
  if (!everything) {
    rows = rows.filter(([, a, b]) => a || b)
      .sort((a, b) => Math.abs(b[1] - b[2]) - Math.abs(a[1] - a[2]));
  }
  const widest = Math.max(1, ...rows.map(([, a, b]) => Math.abs(a - b)));
  const body = rows.slice(0, MODULES_COMPARED).map(([name, a, b]) => {
    const change = a - b;
    const side = change < 0 ? "less" : "more";
    const style = `width:${(100 * Math.abs(change)) / widest}%`;
    const bar = change ? element("div", { class: `bar ${side}`, style }) : null;
    return element(
      "tr",
      { "data-name": name, "data-change": change },
      element("th", { scope: "row" }, name),
      element("td", { class: "number", title: formatExact(b) }, formatBytes(b)),
      element("td", { class: "number", title: formatExact(a) }, formatBytes(a)),
      element("td", { class: `number ${change ? side : ""}`, title: formatExact(change) },
        change ? formatSigned(change) : "equal"),
      element("td", { class: "wide" }, bar),
    );
  });
  const head = headings([title, "other run", "this run", "change", ""], [1, 2, 3]);
  return element(
    "table",
    { class: "compared" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}
