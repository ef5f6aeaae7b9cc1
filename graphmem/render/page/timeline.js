/* The canvas: bytes over operations, stacked by storage, with phases and the peak. */

const MARGIN = { left: 74, right: 14, top: 40, bottom: 46 };
const LEAST_MOMENTS = 12;
const SHADES = [1, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72];

class Timeline {
  constructor(page, canvas) {
    this.page = page;
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.pixels = document.createElement("canvas");
    this.least = 0; // bytes that the picture must have room for
    this.from = 0;
    this.to = page.data.momentCount;
    this.setGrouping("category");
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  setGrouping(mode) {
    const { data } = this.page;
    this.grouping = groupsOf(data, mode);
    this.stack = new Stack(data, this.grouping);
    // Steps of the golden ratio give storages that come to lie together different shades.
    const packed = SHADES.map((shade) => this.grouping.groups.map((group) => ({
      fill: packedColour(group.colour, shade),
      edge: packedColour(group.colour, 0.62),
      dim: (packedColour(group.colour) & 0x00ffffff) | (0x2e << 24),
    })));
    const shadeOf = (i) => packed[Math.floor(((i * 0.618034) % 1) * SHADES.length)];
    const seen = this.grouping.groups.map(() => 0);
    this.colours = Array.from(this.grouping.groupOf, (group) => shadeOf(seen[group]++)[group]);
    this.draw();
  }

  get plotWidth() {
    return Math.max(10, this.canvas.clientWidth - MARGIN.left - MARGIN.right);
  }

  get plotHeight() {
    return Math.max(10, this.canvas.clientHeight - MARGIN.top - MARGIN.bottom);
  }

  xOf(moment) {
    return MARGIN.left + ((moment - this.from) / (this.to - this.from)) * this.plotWidth;
  }

  yOf(bytes) {
    return MARGIN.top + this.plotHeight * (1 - bytes / this.top);
  }

  momentAt(x) {
    const moment = this.from + ((x - MARGIN.left) / this.plotWidth) * (this.to - this.from);
    return Math.min(this.page.data.momentCount - 1, Math.max(0, Math.floor(moment)));
  }

  /* The highest moment in the pixel column at x is drawn, so that no peak gets lost. */
  highestAt(x) {
    const first = this.momentAt(x);
    const last = Math.max(first, this.momentAt(x + 1) - 1);
    const { allocated } = this.page.data.moments;
    let highest = first;
    for (let i = first + 1; i <= last; i++) if (allocated[i] > allocated[highest]) highest = i;
    return highest;
  }

  storageAt(x, y) {
    this.stack.startAt(this.highestAt(x));
    return this.stack.storageAt((1 - (y - MARGIN.top) / this.plotHeight) * this.top);
  }

  view(from, to) {
    const count = this.page.data.momentCount;
    const width = Math.min(count, Math.max(LEAST_MOMENTS, to - from));
    this.from = Math.min(Math.max(0, from), count - width);
    this.to = this.from + width;
    this.draw();
  }

  /* The iteration of the peak. */
  viewPeakStep() {
    const { data } = this.page;
    const peakPhase = data.phaseAt(data.peak);
    const phases = data.phases.filter((phase) => peakPhase && phase.step === peakPhase.step);
    if (phases.length) this.view(phases[0].first, phases.at(-1).last);
  }

  zoom(factor, x = MARGIN.left + this.plotWidth / 2) {
    const share = Math.min(1, Math.max(0, (x - MARGIN.left) / this.plotWidth));
    const centre = this.from + share * (this.to - this.from);
    this.view(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  pan(pixels) {
    const by = (pixels / this.plotWidth) * (this.to - this.from);
    this.view(this.from + by, this.to + by);
  }

  reveal(moment) {
    const width = this.to - this.from;
    if (moment < this.from || moment >= this.to) this.view(moment - width / 2, moment + width / 2);
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const scale = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    this.canvas.width = clientWidth * scale;
    this.canvas.height = clientHeight * scale;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.top = Math.max(this.least, this.highestWithCard()) * 1.04 || 1;
    this.style = getComputedStyle(document.documentElement);
    this.paintPhases();
    this.paintStack();
    this.paintLabels();
    this.paintAxes();
    this.paintCard();
    this.paintReserved();
    this.paintMarks();
  }

  colour(name) {
    return this.style.getPropertyValue(`--${name}`).trim();
  }

  highestShown() {
    const { reserved } = this.page.data.moments;
    let highest = 0;
    const last = Math.min(reserved.length, Math.ceil(this.to));
    for (let i = Math.floor(this.from); i < last; i++) highest = Math.max(highest, reserved[i]);
    return highest;
  }

  /* The card's capacity is in view if the bytes come near it. */
  highestWithCard() {
    const highest = this.highestShown();
    return this.endIsInSight() ? Math.max(highest, this.page.data.capacity) : highest;
  }

  endIsInSight() {
    const { capacity } = this.page.data;
    return capacity && capacity < 1.8 * this.highestShown();
  }

  paintPhases() {
    const { context } = this;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.page.data.phases.forEach((phase, index) => {
      const left = Math.max(MARGIN.left, this.xOf(phase.first));
      const right = Math.min(MARGIN.left + this.plotWidth, this.xOf(phase.last));
      if (right <= left) return;
      context.fillStyle = this.colour(index % 2 ? "band" : "band-other");
      context.fillRect(left, MARGIN.top - 22, right - left, this.plotHeight + 22);
      context.fillStyle = this.colour("muted");
      const fits = [phaseName(phase), phase.name].find(
        (name) => context.measureText(name).width < right - left - 8,
      );
      context.textAlign = "center";
      if (fits) context.fillText(fits, (left + right) / 2, MARGIN.top - 11);
    });
  }

  paintStack() {
    const width = Math.round(this.plotWidth);
    const height = Math.round(this.plotHeight);
    const image = new ImageData(width, height);
    const words = new Uint32Array(image.data.buffer);
    const chosen = this.page.state.storage;
    const outline = packedColour(this.colour("text"));
    this.stack.startAt(this.highestAt(MARGIN.left));
    for (let x = 0; x < width; x++) {
      this.stack.advanceTo(this.highestAt(MARGIN.left + x));
      this.paintColumn(words, x, width, height);
      if (chosen >= 0 && this.page.data.holds(chosen, this.stack.moment)) {
        this.outlineColumn(words, x, width, height, chosen, outline);
      }
    }
    this.pixels.width = width;
    this.pixels.height = height;
    this.pixels.getContext("2d").putImageData(image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.pixels, MARGIN.left, MARGIN.top, this.plotWidth, this.plotHeight);
  }

  paintColumn(words, x, width, height) {
    const { found } = this.page.state;
    const perByte = height / this.top;
    this.stack.bands(this.top / height, (storage, from, to) => {
      const colour = this.colours[storage];
      const bottom = height - Math.round(from * perByte);
      const top = height - Math.round(to * perByte);
      const fill = found && !found[storage] ? colour.dim : colour.fill;
      for (let y = top; y < bottom; y++) words[y * width + x] = fill;
      if (bottom - top > 3 && !(found && !found[storage])) words[top * width + x] = colour.edge;
    });
  }

  outlineColumn(words, x, width, height, storage, colour) {
    const from = this.stack.offsetOf(storage);
    const perByte = height / this.top;
    const bottom = height - 1 - Math.round(from * perByte);
    const top = height - Math.round((from + this.page.data.block[storage]) * perByte);
    for (const y of [bottom, bottom - 1, top, top - 1]) {
      if (y >= 0 && y < height) words[y * width + x] = colour;
    }
  }

  /* Names in bands that are large enough for one. */
  paintLabels() {
    const { context } = this;
    const { data } = this.page;
    const perByte = this.plotHeight / this.top;
    const perMoment = this.plotWidth / (this.to - this.from);
    const wide = [];
    for (let i = 0; i < data.count; i++) {
      const height = data.block[i] * perByte;
      const from = Math.max(data.first[i], this.from);
      const width = (Math.min(data.last[i], this.to) - from) * perMoment;
      if (height >= 12 && width >= 90) wide.push({ i, height, width, from });
    }
    wide.sort((a, b) => b.height * b.width - a.height * a.width);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const { i, height, width, from } of wide.slice(0, 24)) {
      const module = data.text("module", i) || CATEGORY_NAMES[data.text("category", i)];
      const label = shortened(`${module} ${formatBytes(data.bytes[i])}`, Math.floor(width / 7));
      const middle = Math.floor(from + width / perMoment / 2);
      const half = context.measureText(label).width / 2 / perMoment;
      const offsets = [middle - half, middle, middle + half].map((moment) => this.offsetAt(i, moment));
      if (Math.max(...offsets) - Math.min(...offsets) > (height - 8) / perByte) continue;
      const y = this.yOf(offsets[1] + data.block[i] / 2);
      const x = this.xOf(middle);
      context.fillStyle = "rgba(0, 0, 0, 0.62)";
      context.fillRect(x - half * perMoment - 4, y - 6, 2 * half * perMoment + 8, 12);
      context.fillStyle = "#ffffff";
      context.fillText(label, x, y);
    }
  }

  offsetAt(storage, moment) {
    const at = Math.floor(moment);
    if (!this.page.data.holds(storage, at)) return Infinity;
    this.stack.startAt(at);
    return this.stack.offsetOf(storage);
  }

  /* The card's capacity for the allocator. */
  paintCard() {
    const { context } = this;
    const { capacity } = this.page.data;
    if (!capacity || capacity > this.top) return;
    const y = Math.round(this.yOf(capacity)) + 0.5;
    const crossed = this.highestShown() > capacity;
    context.fillStyle = context.strokeStyle = this.colour(crossed ? "more" : "muted");
    if (crossed) {
      context.globalAlpha = 0.1;
      context.fillRect(MARGIN.left, MARGIN.top, this.plotWidth, y - MARGIN.top);
      context.globalAlpha = 1;
    }
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(MARGIN.left, y);
    context.lineTo(MARGIN.left + this.plotWidth, y);
    context.stroke();
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "left";
    const label = `card capacity: ${formatBytes(capacity)}`;
    const colour = context.fillStyle;
    context.fillStyle = this.colour("surface");
    context.fillRect(MARGIN.left + 4, y - 18, context.measureText(label).width + 8, 16);
    context.fillStyle = colour;
    context.fillText(label, MARGIN.left + 8, y - 9);
  }

  paintAxes() {
    const { context } = this;
    context.fillStyle = this.colour("muted");
    context.strokeStyle = this.colour("grid");
    context.font = "12px system-ui, sans-serif";
    context.lineWidth = 1;
    context.textAlign = "right";
    const step = niceStep(this.top / 5);
    for (let bytes = 0; bytes <= this.top; bytes += step) {
      const y = Math.round(this.yOf(bytes)) + 0.5;
      context.beginPath();
      context.moveTo(MARGIN.left, y);
      context.lineTo(MARGIN.left + this.plotWidth, y);
      context.stroke();
      context.fillText(axisLabel(bytes, step), MARGIN.left - 8, y);
    }
    context.textAlign = "center";
    const { op } = this.page.data.moments;
    for (let x = MARGIN.left + 50; x < MARGIN.left + this.plotWidth - 30; x += 140) {
      const index = Math.max(0, op[this.momentAt(x)]);
      const below = MARGIN.top + this.plotHeight;
      context.fillText(`operation ${index.toLocaleString("en-US")}`, x, below + 33);
    }
    paintLayers(this);
  }

  paintReserved() {
    const { context } = this;
    const { reserved } = this.page.data.moments;
    const { capacity } = this.page.data;
    context.lineWidth = 1.25;
    context.setLineDash([5, 3]);
    for (const isAbove of [false, true]) {
      context.strokeStyle = this.colour(isAbove ? "more" : "text");
      context.beginPath();
      let isDown = false;
      for (let x = 0; x <= this.plotWidth; x++) {
        const bytes = reserved[this.momentAt(MARGIN.left + x)];
        const isHere = (bytes > (capacity || Infinity)) === isAbove;
        if (isHere && isDown) context.lineTo(MARGIN.left + x, this.yOf(bytes));
        else if (isHere) context.moveTo(MARGIN.left + x, this.yOf(bytes));
        isDown = isHere;
      }
      context.stroke();
    }
    context.setLineDash([]);
  }

  paintMarks() {
    const { data, state } = this.page;
    if (state.moment !== data.peak) this.paintLine(state.moment, this.colour("muted"), "");
    const peak = formatBytes(data.moments.allocated[data.peak]);
    this.paintLine(data.peak, this.colour("accent"), `peak ${peak}`);
  }

  paintLine(moment, colour, label) {
    if (moment < this.from || moment >= this.to) return;
    const { context } = this;
    const x = Math.round(this.xOf(moment + 0.5));
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, MARGIN.top - (label ? 26 : 4));
    const { allocated } = this.page.data.moments;
    context.lineTo(x, label ? this.yOf(allocated[moment]) : MARGIN.top + this.plotHeight);
    context.stroke();
    if (!label) return;
    context.beginPath();
    context.arc(x, this.yOf(this.page.data.moments.allocated[moment]), 4, 0, 7);
    context.fill();
    context.font = "600 12px system-ui, sans-serif";
    const half = context.measureText(label).width / 2;
    const right = MARGIN.left + this.plotWidth - half;
    context.textAlign = "center";
    context.fillText(label, Math.max(MARGIN.left + half, Math.min(right, x)), MARGIN.top - 33);
  }
}

function niceStep(bytes) {
  const unit = 2 ** (10 * Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  const multiple = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1024].find((each) => each * unit >= bytes);
  return Math.max(1, multiple * unit);
}

function axisLabel(bytes, step) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (step >= size) return `${Math.round(bytes / size).toLocaleString("en-US")} ${unit}`;
  }
  return `${bytes} B`;
}
