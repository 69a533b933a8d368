/* Where things are drawn. Columns from left to right: how many imports away from what was saved;
   what imports nothing that is drawn comes last. An opened package is a box with columns of its own.
   The same things are always drawn at the same places. */

const GAP = { column: 90, split: 24, row: 16 };
const INSET = { side: 26, top: 44, bottom: 26 };

/* Lays out all that is shown. shownIn(branch) is what is drawn in an open one, or in none (null);
   sizeOf(branch) is the size of what is drawn closed; links are pairs of drawn branches.
   Returns the centres by id, relative to the upper left corner of the whole. */
function layOut(shownIn, sizeOf, links) {
  const local = linksByBox(links);
  const boxes = new Map();
  const whole = place(shownIn(null), null);
  const centres = new Map();
  spread(shownIn(null), 0, 0);
  return { centres, width: whole.width, height: whole.height };

  function place(list, holder) {
    const items = list.map((branch) => ({ branch, ...sizeIncluding(branch) }));
    return inColumns(items, local.get(holder) ?? []);
  }

  function sizeIncluding(branch) {
    if (!branch.isOpen) return sizeOf(branch);
    const inner = place(shownIn(branch), branch);
    return { width: inner.width + 2 * INSET.side, height: inner.height + INSET.top + INSET.bottom, inner };
  }

  function inColumns(items, pairs) {
    const columns = orderedColumns(items, pairs);
    const height = Math.max(...columns.map(heightOf), 0);
    let x = 0;
    for (const column of columns) {
      const width = Math.max(...column.items.map((item) => item.width));
      let y = (height - heightOf(column)) / 2;
      for (const item of column.items) {
        boxes.set(item.branch, { x: x + width / 2, y: y + item.height / 2, item });
        y += item.height + GAP.row;
      }
      x += width + (column.isSplit ? GAP.split : GAP.column);
    }
    return { width: Math.max(x - GAP.column, 0), height };
  }

  function spread(list, left, top) {
    for (const branch of list) {
      const { x, y, item } = boxes.get(branch);
      if (branch.isOpen) spread(shownIn(branch), left + x - item.width / 2 + INSET.side, top + y - item.height / 2 + INSET.top);
      else centres.set(branch.id, { x: left + x, y: top + y });
    }
  }
}

function heightOf(column) {
  return column.items.reduce((sum, item) => sum + item.height + GAP.row, -GAP.row);
}

/* Links between drawn branches, as links between the members of the innermost box that holds both. */
function linksByBox(links) {
  const found = new Map();
  const lineOf = (branch) => (branch === null ? [null] : [...lineOf(branch.parent), branch]);
  const lines = new Map();
  const cached = (branch) => lines.get(branch) ?? lines.set(branch, lineOf(branch)).get(branch);
  for (const [from, to] of links) {
    const a = cached(from), b = cached(to);
    let depth = 0;
    while (a[depth + 1] !== undefined && a[depth + 1] === b[depth + 1]) depth += 1;
    if (a[depth + 1] === undefined || b[depth + 1] === undefined) continue;
    if (!found.has(a[depth])) found.set(a[depth], []);
    found.get(a[depth]).push([a[depth + 1], b[depth + 1]]);
  }
  return found;
}

/* Columns by distance, each in an order that keeps what belongs together near each other. */
function orderedColumns(items, pairs) {
  const importing = new Set(pairs.map(([from]) => from));
  const layers = new Map();
  for (const item of items) {
    const isEnd = !importing.has(item.branch) && item.branch.depth > 0;
    const layer = isEnd && item.branch.parent === null ? Infinity : item.branch.depth;
    if (!layers.has(layer)) layers.set(layer, []);
    layers.get(layer).push(item);
  }
  const columns = [...layers.keys()].sort((a, b) => a - b).map((layer) => ({ items: layers.get(layer) }));
  for (const column of columns) column.items.sort((a, b) => (a.branch.label < b.branch.label ? -1 : 1));
  settle(columns, pairs);
  const area = items.reduce((sum, item) => sum + (item.width + 40) * (item.height + GAP.row), 0);
  return columns.flatMap((column) => split(column, Math.max(420, Math.sqrt(area) * 0.9)));
}

/* Moves each thing to the mean height of what it is linked with; a few rounds are enough. */
function settle(columns, pairs) {
  const linked = new Map();
  for (const [a, b] of pairs) {
    if (!linked.has(a)) linked.set(a, []);
    if (!linked.has(b)) linked.set(b, []);
    linked.get(a).push(b);
    linked.get(b).push(a);
  }
  const height = new Map();
  const note = (column) => column.items.forEach((item, row) => height.set(item.branch, row - column.items.length / 2));
  columns.forEach(note);
  for (let round = 0; round < 4; round += 1) {
    for (const column of columns) {
      const wish = new Map(column.items.map((item) => [item, mean(linked.get(item.branch), height, item.branch)]));
      column.items.sort((a, b) => wish.get(a) - wish.get(b));
      note(column);
    }
  }
}

function mean(others, height, own) {
  if (!others) return height.get(own);
  return others.reduce((sum, other) => sum + height.get(other), 0) / others.length;
}

/* A column that is too tall becomes several, side by side. */
function split(column, tallest) {
  const parts = Math.ceil(heightOf(column) / tallest);
  const rows = Math.ceil(column.items.length / parts);
  const made = [];
  for (let at = 0; at < column.items.length; at += rows) made.push({ items: column.items.slice(at, at + rows), isSplit: true });
  made[made.length - 1].isSplit = false;
  return made;
}
