/* The stack of live storages, in a fixed order, at one moment after another.

A tree of sums over the order lets a column of pixels be painted in time proportional to its height:
a part smaller than a pixel is painted as one, in the colour of its largest storage. */

class Stack {
  constructor(data, grouping) {
    this.data = data;
    this.grouping = grouping;
    this.order = Int32Array.from({ length: data.count }, (_, i) => i).sort(
      (a, b) => grouping.groupOf[a] - grouping.groupOf[b] || data.first[a] - data.first[b],
    );
    this.rank = new Int32Array(data.count);
    this.order.forEach((storage, rank) => (this.rank[storage] = rank));
    this.leaves = 1;
    while (this.leaves < data.count) this.leaves *= 2;
    this.sums = new Float64Array(2 * this.leaves);
    this.moment = -1;
  }

  startAt(moment) {
    const { data, sums, leaves } = this;
    sums.fill(0);
    for (let i = 0; i < data.count; i++) {
      if (data.holds(i, moment)) sums[leaves + this.rank[i]] = data.block[i];
    }
    for (let node = leaves - 1; node > 0; node--) sums[node] = sums[2 * node] + sums[2 * node + 1];
    this.moment = moment;
  }

  advanceTo(moment) {
    const { data } = this;
    while (this.moment < moment) {
      const storage = data.changes[++this.moment];
      if (storage >= 0) this.change(storage, data.first[storage] === this.moment);
    }
  }

  change(storage, born) {
    const by = born ? this.data.block[storage] : -this.data.block[storage];
    for (let node = this.leaves + this.rank[storage]; node > 0; node >>= 1) this.sums[node] += by;
  }

  offsetOf(storage) {
    let offset = 0;
    for (let node = this.leaves + this.rank[storage]; node > 1; node >>= 1) {
      if (node & 1) offset += this.sums[node - 1];
    }
    return offset;
  }

  storageAt(bytes) {
    if (bytes < 0 || bytes >= this.sums[1]) return -1;
    let node = 1;
    while (node < this.leaves) {
      node *= 2;
      if (bytes >= this.sums[node]) bytes -= this.sums[node++];
    }
    return this.order[node - this.leaves];
  }

  /* Call paint(storage, from, to) for each range of bytes, bottom up. */
  bands(bytesPerPixel, paint) {
    this.visit(1, 0, bytesPerPixel, paint);
  }

  visit(node, offset, bytesPerPixel, paint) {
    const sum = this.sums[node];
    if (sum === 0) return;
    if (node >= this.leaves || sum < bytesPerPixel) {
      paint(this.order[this.largestBelow(node) - this.leaves], offset, offset + sum);
      return;
    }
    this.visit(2 * node, offset, bytesPerPixel, paint);
    this.visit(2 * node + 1, offset + this.sums[2 * node], bytesPerPixel, paint);
  }

  largestBelow(node) {
    while (node < this.leaves) {
      node *= 2;
      if (this.sums[node + 1] > this.sums[node]) node++;
    }
    return node;
  }
}
