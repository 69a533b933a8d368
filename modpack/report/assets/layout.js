/* The layout of the graph: columns from left to right, by distance from the saved objects. Nodes without
   drawn imports come last. An open package is a box with columns of its own. In a narrow window, rows
   from top to bottom replace columns. The layout is deterministic. */

const GAP = { column: 80, inner: 46, row: 44, split: 22, beside: 16 };
const INSET = { side: 22, top: 40, bottom: 22 };
const NARROW = 640;

function isNarrow(room) {
  return room.width < NARROW;
}

/* Lay out all visible branches. shownIn(branch) returns the branches drawn in an open branch, or at the
   top (null); sizeOf(branch) is the size of a closed branch; links are pairs of drawn branches; room is
   the size to fit into. Return the centers by id, relative to the upper left corner, and the size. */
function layOut(shownIn, sizeOf, links, room) {
  const local = linksByBox(links);
  const boxes = new Map();
  const isDown = isNarrow(room);
  const whole = place(shownIn(null), null, room);
  const centers = new Map();
  spread(shownIn(null), 0, 0);
  return { centers, width: whole.width, height: whole.height };

  function place(list, holder, within) {
    const items = list.map((branch) => along({ branch, ...sizeIncluding(branch, within) }));
    return inColumns(items, local.get(holder) ?? [], within, isDown ? GAP.row : holder === null ? GAP.column : GAP.inner);
  }

  /* An item with its sizes along and across a column. */
  function along(item) {
    return isDown ? { ...item, length: item.width, breadth: item.height } : { ...item, length: item.height, breadth: item.width };
  }

  function sizeIncluding(branch, within) {
    if (!branch.isOpen) return sizeOf(branch);
    const inset = { width: 2 * INSET.side, height: INSET.top + INSET.bottom };
    const inner = place(shownIn(branch), branch, { width: within.width - inset.width, height: within.height - inset.height });
    return { width: inner.width + inset.width, height: inner.height + inset.height };
  }

  function inColumns(items, pairs, within, gap) {
    const columns = orderedColumns(items, pairs, longestColumn(items, within));
    const length = Math.max(...columns.map(lengthOf), 0);
    let across = 0, end = 0;
    for (const column of columns) {
      const breadth = Math.max(...column.items.map((item) => item.breadth));
      let at = (length - lengthOf(column)) / 2;
      for (const item of column.items) {
        const center = [across + breadth / 2, at + item.length / 2];
        const [x, y] = isDown ? center.reverse() : center;
        boxes.set(item.branch, { x, y, item });
        at += item.length + GAP.beside;
      }
      end = across + breadth;
      across = end + (column.isSplit ? GAP.split : gap);
    }
    return isDown ? { width: length, height: end } : { width: end, height: length };
  }

  /* The length of columns: it fits the room, and gives the whole the shape of the room. */
  function longestColumn(items, within) {
    if (isDown) return Math.max(within.width, 0);
    const area = items.reduce((sum, item) => sum + (item.width + 40) * (item.height + GAP.beside), 0);
    const shaped = Math.sqrt((area * Math.max(within.height, 200)) / Math.max(within.width, 200));
    return Math.max(160, Math.min(within.height, shaped * 1.6));
  }

  function spread(list, left, top) {
    for (const branch of list) {
      const { x, y, item } = boxes.get(branch);
      if (branch.isOpen) spread(shownIn(branch), left + x - item.width / 2 + INSET.side, top + y - item.height / 2 + INSET.top);
      else centers.set(branch.id, { x: left + x, y: top + y });
    }
  }
}

function lengthOf(column) {
  return column.items.reduce((sum, item) => sum + item.length + GAP.beside, -GAP.beside);
}

/* Map links between drawn branches to links between members of their innermost common box. */
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

/* Columns by distance, each ordered so that related items are near each other. */
function orderedColumns(items, pairs, longest) {
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
  return columns.flatMap((column) => split(column, longest));
}

/* Move each item to the mean height of its neighbors. A few rounds are enough. */
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

/* Split a long column into several of about the same length. */
function split(column, longest) {
  const least = lengthOf(column) / Math.ceil(lengthOf(column) / longest);
  const made = [{ items: [], isSplit: true }];
  for (const item of column.items) {
    const last = made[made.length - 1];
    const length = lengthOf({ items: [...last.items, item] });
    if (last.items.length > 0 && (length > longest || length > least + item.length / 2)) made.push({ items: [item], isSplit: true });
    else last.items.push(item);
  }
  made[made.length - 1].isSplit = false;
  return made;
}
