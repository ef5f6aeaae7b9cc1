/* Decodes the columns that graphmem/render/page_data.py wrote, and answers queries about them. */

async function decode(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function summed(differences, ArrayType = Int32Array) {
  const found = new ArrayType(differences.length);
  let sum = 0;
  for (let i = 0; i < differences.length; i++) found[i] = sum += differences[i];
  return found;
}

class StepData {
  constructor(content) {
    this.report = content.report;
    this.peak = content.peak;
    const { memory, ran } = content.report;
    this.capacity = (memory ? memory.on_card : ran)?.capacity;
    this.phases = content.phases;
    this.texts = content.texts;
    this.files = content.files ?? {};
    this.ops = content.ops;
    this.moments = {
      allocated: summed(content.moments.allocated, Float64Array),
      requested: summed(content.moments.requested, Float64Array),
      reserved: summed(content.moments.reserved, Float64Array),
      op: summed(content.moments.op),
    };
    this.momentCount = this.moments.op.length;
    this.readStorages(content.storages);
    this.readOwners(content.owners);
  }

  readStorages(columns) {
    this.first = summed(columns.first);
    this.last = this.first.map((first, i) => first + columns.span[i]);
    this.bytes = Float64Array.from(columns.bytes);
    this.block = Float64Array.from(columns.block);
    this.op = summed(columns.op);
    for (const name of ["module", "dtype", "shape", "category", "reason"]) {
      this[name] = columns[name];
    }
    this.count = this.first.length;
    this.changes = new Int32Array(this.momentCount).fill(-1); // by moment: the storage that is born or dies
    for (let i = 0; i < this.count; i++) {
      this.changes[this.first[i]] = i;
      if (this.last[i] < this.momentCount) this.changes[this.last[i]] = i;
    }
  }

  readOwners(columns) {
    const storage = summed(columns.storage);
    const firstOp = summed(columns.first_op);
    const lastOp = summed(columns.last_op);
    this.ownersOf = Array.from({ length: this.count }, () => []);
    storage.forEach((owned, i) => {
      this.ownersOf[owned].push({
        kind: this.texts[columns.kind[i]],
        name: this.texts[columns.name[i]],
        source: this.texts[columns.source[i]],
        takenOver: columns.taken_over[i],
        first: this.first[owned] + columns.first[i],
        last: this.first[owned] + columns.last[i],
        firstOp: firstOp[i],
        lastOp: lastOp[i],
      });
    });
  }

  text(column, i) {
    return this.texts[this[column][i]];
  }

  opText(column, i) {
    const op = this.op[i];
    return op < 0 ? "" : this.texts[this.ops[column][op]];
  }

  holds(i, moment) {
    return this.first[i] <= moment && moment < this.last[i];
  }

  aliveAt(moment) {
    const alive = [];
    for (let i = 0; i < this.count; i++) if (this.holds(i, moment)) alive.push(i);
    return alive;
  }

  ownersAt(i, moment) {
    return this.ownersOf[i].filter((owner) => owner.first <= moment && moment < owner.last);
  }

  /* Storage.category_at of graphmem/graph.py, which explains its clauses. */
  categoryAt(i, moment) {
    const category = this.text("category", i);
    if (category !== "activation" && category !== "temporary") return category;
    return this.isSaved(i, moment) ? "activation" : "temporary";
  }

  isSaved(i, moment) {
    return this.ownersOf[i].some((owner) => owner.kind === "saved_tensor"
      && owner.first <= moment && (owner.takenOver || moment < owner.last));
  }

  phaseAt(moment) {
    return this.phases.find((phase) => phase.first <= moment && moment < phase.last);
  }

  /* What keeps a storage alive at a moment, without the numbers of layers and steps. */
  keeperOf(i, moment) {
    const owners = this.ownersAt(i, moment);
    const saved = owners.find((owner) => owner.kind === "saved_tensor" && owner.name);
    if (saved) return `saved by ${saved.name}`;
    const named = owners.find((owner) => owner.kind === "variable" && owner.name);
    if (named) return `variable ${named.name}`;
    return CATEGORY_NAMES[this.categoryAt(i, moment)];
  }

  matches(query) {
    // `model.py:4` is line 4, and not the beginning of line 44.
    const words = query.toLowerCase().split(/\s+/).filter(Boolean)
      .map((word) => (/:\d+$/.test(word) ? `${word} ` : word));
    if (!words.length) return null;
    const found = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i++) {
      const names = this.ownersOf[i].map((owner) => `${owner.name} ${owner.source}`).join(" ");
      const fields = ["module", "dtype", "shape", "reason"].map((name) => this.text(name, i));
      const made = `${this.opText("target", i)} ${this.opText("source", i)}`;
      const text = `${fields.join(" ")} ${made} ${names} `.toLowerCase();
      found[i] = words.every((word) => text.includes(word)) ? 1 : 0;
    }
    return found;
  }
}
