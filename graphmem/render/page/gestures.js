/* Mouse, touch and keyboard on the timeline and on the overview below it. */

const DRAG_PIXELS = 4;

function listenToTimeline(page, timeline, tooltip) {
  const { canvas } = timeline;
  let grabbed = null;
  let moved = false;
  canvas.addEventListener("pointerdown", (event) => {
    grabbed = event.clientX;
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (grabbed === null) {
      showTooltip(page, timeline, tooltip, event);
      return;
    }
    if (!moved && Math.abs(event.clientX - grabbed) < DRAG_PIXELS) return;
    moved = true;
    tooltip.hidden = true;
    timeline.pan(grabbed - event.clientX);
    grabbed = event.clientX;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!moved) page.show(...pointedAt(page, timeline, event));
    grabbed = null;
  });
  canvas.addEventListener("pointercancel", () => (grabbed = null));
  canvas.addEventListener("pointerleave", () => (tooltip.hidden = true));
  canvas.addEventListener("wheel", (event) => turnWheel(timeline, event), { passive: false });
  canvas.addEventListener("keydown", (event) => pressKey(page, timeline, event));
}

/* The moment and the storage under the pointer; snaps to the peak within a few pixels. */
function pointedAt(page, timeline, event) {
  const { peak } = page.data;
  const x = event.offsetX;
  const nearPeak = Math.abs(timeline.xOf(peak + 0.5) - x) <= 6;
  const storage = event.offsetY < MARGIN.top ? -1 : timeline.storageAt(x, event.offsetY);
  return nearPeak ? [peak, storage] : [timeline.highestAt(x), storage];
}

function showTooltip(page, timeline, tooltip, event) {
  const { data } = page;
  const moment = timeline.highestAt(event.offsetX);
  const storage = timeline.storageAt(event.offsetX, event.offsetY);
  const { allocated, reserved, op } = data.moments;
  const lines = [
    element("b", {}, `${formatBytes(allocated[moment])} allocated`),
    element("span", {}, `${formatBytes(reserved[moment])} reserved`),
    element("span", {}, `operation ${op[moment].toLocaleString("en-US")}, `
      + phaseName(data.phaseAt(moment))),
  ];
  if (storage >= 0) {
    lines.push(element("b", { class: "gap" }, storageTitle(data, storage)));
    lines.push(element("span", {}, shortened(data.text("module", storage) || OUTSIDE, 60)));
    lines.push(element("span", {}, shortened(data.text("reason", storage), 110)));
  }
  tooltip.replaceChildren(...lines);
  tooltip.hidden = false;
}

/* The wheel scrolls the page until the timeline has been clicked, or with Ctrl. */
function turnWheel(timeline, event) {
  if (document.activeElement !== timeline.canvas && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    timeline.pan(event.deltaX || event.deltaY);
  } else {
    timeline.zoom(Math.exp(event.deltaY * 0.0015), event.offsetX);
  }
}

function pressKey(page, timeline, event) {
  const step = Math.max(1, Math.round((timeline.to - timeline.from) / 60));
  const moveTo = (moment) => {
    const { momentCount } = page.data;
    page.show(Math.min(momentCount - 1, Math.max(0, moment)), -1);
    timeline.reveal(page.state.moment);
  };
  const actions = {
    ArrowLeft: () => moveTo(page.state.moment - (event.shiftKey ? 1 : step)),
    ArrowRight: () => moveTo(page.state.moment + (event.shiftKey ? 1 : step)),
    ArrowUp: () => page.selectNeighbour(1),
    ArrowDown: () => page.selectNeighbour(-1),
    Home: () => moveTo(0),
    End: () => moveTo(page.data.momentCount - 1),
    "+": () => timeline.zoom(0.6, timeline.xOf(page.state.moment)),
    "=": () => timeline.zoom(0.6, timeline.xOf(page.state.moment)),
    "-": () => timeline.zoom(1 / 0.6, timeline.xOf(page.state.moment)),
    0: () => timeline.view(0, page.data.momentCount),
    p: () => page.goToPeak(),
  };
  const action = actions[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
}
