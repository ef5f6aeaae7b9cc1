/* The user's files: beside each line, what it allocated that is alive, and how much of that autograd saved. */

class SourceView {
  constructor(page) {
    this.page = page;
    this.files = Object.keys(page.data.files);
    this.section = document.getElementById("source");
    this.section.hidden = !this.files.length;
    if (!this.files.length) return;
    const choice = document.getElementById("source-file");
    choice.append(...this.files.map((file) => element("option", {}, file)));
    choice.addEventListener("change", () => this.open(choice.value));
    this.open(this.files[0]);
  }

  /* Show a file, scrolled to its largest line. */
  open(file) {
    this.file = file;
    this.rows = this.page.data.files[file].replace(/\n$/, "").split("\n").map((text, index) => {
      const [alive, bar, saved] = ["number", "source-bar", "number"].map(
        (name) => element("td", { class: name }));
      const row = element("tr", { "data-line": index + 1 }, alive, bar, saved,
        element("th", { scope: "row" }, `${index + 1}`), element("td", { class: "code" }, text));
      return { row, alive, bar, saved };
    });
    replaceChildren("source-body", ...this.rows.map(({ row }) => row));
    this.show();
    const [largest] = [...this.sums].sort((a, b) => b[1].alive - a[1].alive)[0] || [1];
    const scroller = document.getElementById("source-lines");
    scroller.scrollTop = this.rows[largest - 1].row.offsetTop - scroller.clientHeight / 2;
  }

  show() {
    if (!this.files.length) return;
    const { elsewhere, most } = this.add();
    this.rows.forEach(({ row, alive, bar, saved }, index) => {
      const sum = this.sums.get(index + 1);
      row.className = sum ? "holds" : "";
      alive.replaceChildren(...(sum ? [this.link(index + 1, sum.alive)] : []));
      bar.replaceChildren(...(sum
        ? [element("div", { class: "bar", style: `width:${(100 * sum.alive) / most}%` })] : []));
      saved.textContent = sum?.saved ? formatBytes(sum.saved) : "";
    });
    oneTabStop(document.getElementById("source-body"));
    const others = this.files.length > 1 ? "the other files, " : "";
    replaceChildren("source-note", elsewhere
      ? `${formatBytes(elsewhere)} comes from ${others}packages, the optimizer or no known line; `
        + "group the table below by line to see them."
      : "");
  }

  /* Sums by line of this file, and the bytes that are not of this file. */
  add() {
    const { data, state } = this.page;
    this.sums = new Map();
    let elsewhere = 0;
    let most = 1;
    for (const i of data.aliveAt(state.moment)) {
      const [, file, line] = data.opText("source", i).match(/^(.*):(\d+)$/s) || [];
      if (file !== this.file) {
        elsewhere += data.block[i];
        continue;
      }
      const sum = this.sums.get(Number(line)) || { alive: 0, saved: 0 };
      sum.alive += data.block[i];
      if (data.isSaved(i, state.moment)) sum.saved += data.block[i];
      this.sums.set(Number(line), sum);
      most = Math.max(most, sum.alive);
    }
    return { elsewhere, most };
  }

  link(line, bytes) {
    return element("button", {
      type: "button", class: "link", title: formatExact(bytes),
      "aria-label": `${formatBytes(bytes)} of line ${line}: search for it`,
      onclick: () => this.page.searchFor(`${this.file}:${line}`),
    }, formatBytes(bytes));
  }
}
