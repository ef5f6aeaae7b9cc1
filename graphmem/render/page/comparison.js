/* This report compared with another: what grew, what shrank. */

const MODULES_COMPARED = 25;

async function compareWithFile(page, file) {
  try {
    const other = JSON.parse(await file.text());
    if (!String(other.schema).startsWith("graphmem.report/")) throw new Error("not a graphmem report");
    showComparison(page, other);
  } catch (error) {
    const message = `${file.name}: ${error.message}`;
    replaceChildren("comparison", element("p", { class: "error" }, message));
  }
}

function showComparison(page, other) {
  const { report } = page.data;
  const byPhase = (each) => Object.fromEntries(each.steps.flatMap(
    (step) => step.phases.map((phase) => [`step ${step.step} ${phase.name}`, phase.peak])));
  const named = (sums) => Object.fromEntries(
    Object.entries(sums).map(([name, bytes]) => [CATEGORY_NAMES[name] || name, bytes]));
  const peakOf = ({ peak }) => ({
    "allocated at the peak": peak.allocated,
    "requested at the peak": peak.requested,
    "reserved at the peak": peak.reserved,
  });
  replaceChildren(
    "comparison",
    element("p", {}, `This page: ${report.target} on ${report.runtime.title}. `
      + `The other report: ${other.target} on ${other.runtime.title}.`),
    differences("peak", peakOf(report), peakOf(other), true),
    differences("peak of each phase", byPhase(report), byPhase(other), true),
    differences("category at the peak",
      named(report.at_peak.by_category), named(other.at_peak.by_category), false),
    differences("module at the peak", report.at_peak.by_module, other.at_peak.by_module, false),
  );
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
  const head = headings([title, "other report", "this page", "change", ""], [1, 2, 3]);
  return element(
    "table",
    { class: "compared" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}
