/* The page: its state, and its reactions to changes of state. */

class Page {
  constructor(data) {
    this.data = data;
    this.state = {
      moment: data.peak, storage: -1, found: null, modulePath: "", groupBy: "storage",
      rows: ROWS_AT_FIRST,
    };
    this.timeline = new Timeline(this, document.getElementById("timeline"));
    this.overview = new Overview(this, document.getElementById("overview"));
    this.compared = [];
    this.source = new SourceView(this);
    const paint = this.timeline.paint.bind(this.timeline);
    this.timeline.paint = () => {
      paint();
      this.overview.draw();
    };
    this.showLegend();
    // A leak's story is that of all iterations.
    if (document.querySelector(".verdict .leak")) this.timeline.view(0, this.data.momentCount);
    else this.timeline.viewPeakStep();
    this.refresh();
  }

  /* Choose a moment, and a storage or -1. */
  show(moment, storage) {
    const moved = moment !== this.state.moment;
    this.state.moment = moment;
    this.state.storage = storage;
    this.timeline.draw();
    if (moved) this.refresh();
    else showStorage(this);
  }

  select(storage) {
    this.state.storage = storage;
    this.timeline.draw();
    showStorage(this);
    showHolders(this);
  }

  /* The next storage at this moment by size, larger or smaller. */
  selectNeighbour(by) {
    const { data, state } = this;
    const alive = data.aliveAt(state.moment).sort((a, b) => data.block[b] - data.block[a]);
    if (!alive.length) return;
    const at = alive.indexOf(state.storage);
    const next = at < 0 ? 0 : Math.min(alive.length - 1, Math.max(0, at - by));
    this.select(alive[next]);
  }

  goToPeak() {
    this.show(this.data.peak, -1);
    this.timeline.reveal(this.data.peak);
  }

  focusModule(path) {
    this.state.modulePath = path;
    showModules(this);
  }

  refresh() {
    showMoment(this);
    showStorage(this);
    showCategories(this);
    showModules(this);
    showKeepers(this);
    this.source.show();
    showHolders(this);
  }

  /* Put a query into the search box, and show what it finds. */
  searchFor(query) {
    document.getElementById("search").value = query;
    this.search(query);
    document.getElementById("holders-title").scrollIntoView();
  }

  search(query) {
    this.state.found = this.data.matches(query);
    this.state.rows = ROWS_AT_FIRST;
    const { found } = this.state;
    const count = found ? found.reduce((sum, each) => sum + each, 0) : 0;
    const alive = found ? this.data.aliveAt(this.state.moment).filter((i) => found[i]).length : 0;
    const told = `${count.toLocaleString("en-US")} storages, ${alive.toLocaleString("en-US")} in the table`;
    replaceChildren("search-result", found ? told : "");
    this.timeline.draw();
    showHolders(this);
  }

  showLegend() {
    const items = this.timeline.grouping.groups.map((group) =>
      element("li", {}, element("span", { class: "swatch", style: `background:${group.colour}` }),
        shortened(group.name, 48)));
    items.push(element("li", {}, element("span", { class: "dash" }), "reserved"));
    const { capacity } = this.data;
    if (capacity) {
      const crossed = this.data.moments.allocated[this.data.peak] > capacity;
      items.push(element("li", {}, element("span", { class: crossed ? "end crossed" : "end" }),
        `card capacity, ${formatBytes(capacity)}${this.timeline.endIsInSight() ? "" : " (above)"}`));
    }
    replaceChildren("legend", ...items);
  }

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    this.redraw();
  }

  redraw() {
    for (const timeline of [this.timeline, ...this.compared]) timeline.draw();
  }
}

function listenToControls(page) {
  const { timeline } = page;
  const on = (id, event, action) => document.getElementById(id).addEventListener(event, action);
  on("search", "input", (event) => page.search(event.target.value));
  on("colour-by", "change", (event) => {
    timeline.setGrouping(event.target.value);
    page.showLegend();
    showStorage(page);
  });
  on("zoom-in", "click", () => timeline.zoom(0.6, timeline.xOf(page.state.moment)));
  on("zoom-out", "click", () => timeline.zoom(1 / 0.6, timeline.xOf(page.state.moment)));
  on("whole", "click", () => timeline.view(0, page.data.momentCount));
  on("peak-step", "click", () => timeline.viewPeakStep());
  on("to-peak", "click", () => page.goToPeak());
  on("theme", "click", () => {
    const { theme } = document.documentElement.dataset;
    const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    page.setTheme(isDark ? "light" : "dark");
  });
  on("group-by", "change", (event) => {
    page.state.groupBy = event.target.value;
    page.state.rows = ROWS_AT_FIRST;
    showHolders(page);
  });
  on("more-rows", "click", () => {
    page.state.rows *= 4;
    showHolders(page);
  });
  on("other-report", "change", (event) => {
    const [file] = event.target.files;
    if (file) compareWithFile(page, file);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
}

async function start() {
  const content = await decode(document.getElementById("step-data").textContent.trim());
  const page = new Page(new StepData(content));
  listenToControls(page);
  listenToTimeline(page, page.timeline, document.getElementById("tooltip"));
  if (content.other) showComparison(page, content.other);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  document.getElementById("failure").hidden = false;
  document.getElementById("failure").textContent =
    `This page could not be shown: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
