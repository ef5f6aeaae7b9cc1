/* The layers along the time axis: which modules ran when, named as deeply as there is room. */

const RUN_PIXELS = 22;
const MOST_PARTS = 8;

/* Runs of pixel columns with the same module, over columns that have none. */
function layerRuns(modules, parts) {
  const runs = [];
  modules.forEach((module, x) => {
    const name = module.split(".").slice(0, parts).join(".");
    const last = runs.at(-1);
    if (!name) return;
    if (last && last.name === name) last.to = x + 1;
    else runs.push({ name, from: x, to: x + 1 });
  });
  return runs;
}

/* At least down to the number of the layer, and deeper while most runs are wide enough for a name. */
function namedRuns(modules) {
  const numbered = modules.map((module) => module.split(".").findIndex((part) => /^\d+$/.test(part)));
  const least = 1 + Math.max(0, ...numbered);
  let runs = layerRuns(modules, least);
  for (let parts = least + 1; parts <= MOST_PARTS; parts++) {
    const deeper = layerRuns(modules, parts);
    const narrow = deeper.filter((run) => run.to - run.from < RUN_PIXELS).length;
    if (narrow > deeper.length / 2) break;
    runs = deeper;
  }
  return runs;
}

function paintLayers(timeline) {
  const { context } = timeline;
  const { data } = timeline.page;
  const modules = Array.from({ length: Math.round(timeline.plotWidth) }, (_, x) => {
    const op = data.moments.op[timeline.momentAt(MARGIN.left + x)];
    return op < 0 ? "" : data.texts[data.ops.module[op]];
  });
  const top = MARGIN.top + timeline.plotHeight;
  let free = 0;
  context.textAlign = "center";
  namedRuns(modules).forEach(({ name, from, to }, index) => {
    context.fillStyle = timeline.colour(index % 2 ? "band-other" : "line");
    context.fillRect(MARGIN.left + from, top + 3, to - from, 5);
    const label = shortened(name, 24);
    const half = context.measureText(label).width / 2;
    const centre = Math.max(half, (from + to) / 2);
    if (centre - half < free || MARGIN.left + centre + half > timeline.canvas.clientWidth) return;
    free = centre + half + 8;
    context.fillStyle = timeline.colour("muted");
    context.fillText(label, MARGIN.left + centre, top + 17);
  });
}
