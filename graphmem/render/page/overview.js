/* The strip below the timeline: the whole trace, with the visible part marked. */

class Overview {
  constructor(page, canvas) {
    this.page = page;
    this.canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    let held = false;
    canvas.addEventListener("pointerdown", (event) => {
      held = true;
      canvas.setPointerCapture(event.pointerId);
      this.centreOn(event.offsetX);
    });
    canvas.addEventListener("pointermove", (event) => held && this.centreOn(event.offsetX));
    canvas.addEventListener("pointerup", () => (held = false));
  }

  get plotWidth() {
    return Math.max(10, this.canvas.clientWidth - MARGIN.left - MARGIN.right);
  }

  centreOn(x) {
    const { timeline, data } = this.page;
    const centre = ((x - MARGIN.left) / this.plotWidth) * data.momentCount;
    const half = (timeline.to - timeline.from) / 2;
    timeline.view(centre - half, centre + half);
  }

  draw() {
    const { data, timeline } = this.page;
    const scale = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight: height } = this.canvas;
    this.canvas.width = clientWidth * scale;
    this.canvas.height = height * scale;
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const { allocated } = data.moments;
    const width = this.plotWidth;
    const top = allocated[data.peak] * 1.05 || 1;
    context.fillStyle = colour("muted");
    context.globalAlpha = 0.55;
    for (let x = 0; x < width; x++) {
      const first = Math.floor((x / width) * allocated.length);
      const last = Math.max(first + 1, Math.floor(((x + 1) / width) * allocated.length));
      let highest = 0;
      for (let i = first; i < last; i++) highest = Math.max(highest, allocated[i]);
      const bar = (highest / top) * height;
      context.fillRect(MARGIN.left + x, height - bar, 1, bar);
    }
    context.globalAlpha = 1;
    const at = (moment) => MARGIN.left + (moment / data.momentCount) * width;
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    context.strokeRect(at(timeline.from), 1, at(timeline.to) - at(timeline.from), height - 2);
  }
}
