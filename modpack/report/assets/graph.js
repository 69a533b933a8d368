/* The graph: a node for each closed branch of the tree, a box for each open one, and one arrow for all
   imports between two nodes. */

const graph = (() => {
  const canvas = document.getElementById("canvas");
  const status = document.getElementById("status");
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const hidden = new Set();
  let withPython = tree.top.length <= 2;
  let chosen = null;
  let drawn = new Map();
  let links = [];
  const READABLE = 30;
  const MANY = 150;
  const TOO_MANY = 700;
  const MAX_DRAWN = 400;
  const LABEL = 13; // font size in pixels without zoom
  const LEAST_LABEL = 12; // minimum font size of the initial view
  const NEAREST = 1.4;
  const MARGIN = 20;
  let clock = 0;
  let cy = null;
  let arrangedNarrow = null;

  function isShown(branch) {
    const group = branch.group !== undefined ? known.groups[branch.group] : null;
    if (!withPython && group && (group.kind === "python" || group.kind === "runtime")) return false;
    return branch.members.some((index) => !hidden.has(decisionOf(index)));
  }

  function shownIn(branch) {
    return (branch === null ? tree.top : branch.children).filter(isShown);
  }

  /* The node of each module: the outermost closed branch above it. */
  function visit(branches, found) {
    for (const branch of branches) {
      if (branch.isOpen) visit(shownIn(branch), found);
      else for (const index of branch.members) found.set(index, branch);
    }
    return found;
  }

  function arrows() {
    const counts = new Map();
    for (const [from, to, kind] of known.edges) {
      if (kind === neverRuns || kind === isParent) continue;
      const a = drawn.get(from), b = drawn.get(to);
      if (a === undefined || b === undefined || a === b) continue;
      const id = `${a.id}>${b.id}`;
      const arrow = counts.get(id) ?? { id, from: a, to: b, count: 0 };
      arrow.count += 1;
      counts.set(id, arrow);
    }
    return [...counts.values()];
  }

  /* The width of a label in the font of the graph. */
  const pen = document.createElement("canvas").getContext("2d");
  function labelOf(branch) {
    if (isLeaf(branch)) return branch.label;
    return `${branch.label}\n${counted(branch.members.length, "module")}`;
  }
  function sizeOf(branch) {
    const lines = labelOf(branch).split("\n");
    pen.font = `${isLeaf(branch) ? "" : "600 "}${LABEL}px system-ui, sans-serif`;
    const widest = Math.max(...lines.map((line) => pen.measureText(line).width));
    const room = branch.module !== null && decisionOf(branch.module) === "saved" ? 64 : 26;
    return { width: Math.max(54, Math.ceil(widest) + room), height: lines.length > 1 ? 46 : 30 };
  }

  function nodeData(branch) {
    const decisions = decisionsIn(branch);
    const risk = branch.members.some((index) => known.mocks[index]?.risk === "called");
    return {
      id: branch.id, label: branch.isOpen ? branch.label : labelOf(branch),
      parent: branch.parent?.id, decision: decisions[0][0],
      decisions: decisions.length > 1 ? decisions : undefined, risk: risk ? 1 : 0, ...sizeOf(branch),
    };
  }

  function arrow({ id, from, to, count }, classes = "") {
    const width = 1 + Math.min(4, Math.log2(count) / 2);
    return { group: "edges", data: { id, source: from.id, target: to.id, width }, classes };
  }

  function boxesAndNodes(centers) {
    const made = [];
    const add = (branches) => {
      for (const branch of branches) {
        const kind = branch.isOpen ? "box" : isLeaf(branch) ? "leaf" : "closed";
        made.push({ group: "nodes", data: nodeData(branch), classes: kind, position: centers.get(branch.id) });
        if (branch.isOpen) add(shownIn(branch));
      }
    };
    add(shownIn(null));
    return made;
  }

  /* The size of the canvas with readable labels, in units of the graph. */
  function room() {
    const zoom = LEAST_LABEL / LABEL;
    return { width: (cy.width() - 2 * MARGIN) / zoom, height: (cy.height() - 2 * MARGIN) / zoom };
  }

  function arrange() {
    drawn = visit(shownIn(null), new Map());
    links = arrows();
    return layOut(shownIn, sizeOf, links.map(({ from, to }) => [from, to]), room());
  }

  function draw() {
    const placed = arrange();
    arrangedNarrow = isNarrow(room());
    cy.startBatch();
    cy.elements().remove();
    cy.add(boxesAndNodes(placed.centers));
    const kind = links.length > MANY ? "many" : "";
    if (links.length <= TOO_MANY) cy.add(links.map((link) => arrow(link, kind)));
    cy.endBatch();
    document.getElementById("crowded").hidden = links.length <= TOO_MANY;
    mark();
  }

  /* With too many arrows, draw only those of the selection. */
  function addPassing(inside) {
    const ids = new Set(inside.map((node) => node.id()));
    const wanted = links.filter(({ from, to }) => ids.has(from.id) !== ids.has(to.id));
    cy.add(wanted.map((link) => arrow(link, "passing")));
  }

  /* Highlight the selection, its neighbors, and the chain that leads to it. */
  function mark() {
    cy.startBatch();
    cy.elements(".passing").remove();
    cy.elements().removeClass("chosen near in out faded chain");
    const node = chosen === null ? cy.collection() : cy.$id(chosen.id);
    if (node.nonempty()) {
      const inside = node.union(node.descendants());
      if (links.length > TOO_MANY) addPassing(inside);
      const incoming = inside.incomers("edge").difference(inside.outgoers("edge"));
      const outgoing = inside.outgoers("edge").difference(inside.incomers("edge"));
      const near = incoming.union(outgoing).connectedNodes().union(inside);
      cy.elements().difference(near.union(near.ancestors()).union(inside.connectedEdges())).addClass("faded");
      incoming.addClass("in");
      outgoing.addClass("out");
      node.addClass("chosen");
      if (isLeaf(chosen)) markChain(chosen.module);
    }
    cy.endBatch();
    document.getElementById("expand").disabled = chosen === null || isLeaf(chosen) || chosen.isOpen;
    document.getElementById("collapse").disabled = chosen === null || (!chosen.isOpen && chosen.parent === null);
  }

  function markChain(index) {
    for (const { from, to } of chainTo(index) ?? []) {
      const a = drawn.get(from), b = drawn.get(to);
      if (a === undefined || b === undefined || a === b) continue;
      const id = `${a.id}>${b.id}`;
      if (cy.$id(id).empty())
        cy.add(arrow({ id, from: a, to: b, count: 1 }, "passing"));
      cy.$id(id).removeClass("faded in out").addClass("chain").connectedNodes().removeClass("faded");
    }
  }

  function fitting(box) {
    return Math.min((cy.width() - 2 * MARGIN) / box.w, (cy.height() - 2 * MARGIN) / box.h);
  }

  function isReadable(elements) {
    cy.resize();
    return fitting(elements.boundingBox()) >= LEAST_LABEL / LABEL;
  }

  /* Bring elements into view with readable labels, unless the whole graph is requested. If they do not
     fit, center on the selection, or on the starts of the chains. */
  function look(elements, { animated = true, whole = false } = {}) {
    if (elements.empty()) return;
    cy.resize();
    const box = elements.boundingBox();
    const least = whole ? 0 : LEAST_LABEL / LABEL;
    const zoom = Math.min(Math.max(fitting(box), least), NEAREST);
    const focus = chosen === null ? cy.collection() : cy.$id(chosen.id);
    const middle = { x: (box.x1 + box.x2) / 2, y: (box.y1 + box.y2) / 2 };
    const beginning = isNarrow(room()) ? { x: middle.x, y: box.y1 } : { x: box.x1, y: middle.y };
    const at = focus.nonempty() && !chosen.isOpen ? focus.position() : beginning;
    const pan = {
      x: panned(cy.width(), zoom, box.x1, box.x2, at.x),
      y: panned(cy.height(), zoom, box.y1, box.y2, at.y),
    };
    cy.stop();
    if (animated && !calm && cy.elements().length < 1500) cy.animate({ zoom, pan }, { duration: 220 });
    else cy.viewport({ zoom, pan });
  }

  /* The start of an axis: centered if all of it fits, otherwise near a point. */
  function panned(size, zoom, first, last, point) {
    if (zoom * (last - first) <= size - 2 * MARGIN + 1) return size / 2 - (zoom * (first + last)) / 2;
    const wished = size / 2 - zoom * point;
    return Math.min(MARGIN - zoom * first, Math.max(size - MARGIN - zoom * last, wished));
  }

  function say(text) {
    status.textContent = text;
  }

  function unfold(branch) {
    branch.isOpen = true;
    branch.openedAt = clock += 1;
  }

  function fold(branch) {
    branch.isOpen = false;
    branch.children.forEach(fold);
  }

  function countDrawn(branch) {
    const parts = shownIn(branch);
    return parts.reduce((sum, part) => sum + (part.isOpen ? countDrawn(part) : 0), parts.length);
  }

  /* Close the branches that were opened first if there is too much to draw, but no ancestors of a branch. */
  function makeRoomFor(branch) {
    const holders = new Set();
    for (let at = branch; at !== null; at = at.parent) holders.add(at);
    const others = [...tree.byId.values()].filter((each) => each.isOpen && !holders.has(each));
    others.sort((a, b) => a.openedAt - b.openedAt);
    while (others.length && countDrawn(null) > MAX_DRAWN) fold(others.shift());
  }

  function open(branch) {
    if (isLeaf(branch)) return;
    unfold(branch);
    makeRoomFor(branch);
    chosen = branch;
    draw();
    look(cy.$id(branch.id));
    say(`${branch.label} is open: ${counted(branch.children.length, "part")}.`);
  }

  function close(branch) {
    const target = branch.isOpen ? branch : branch.parent;
    if (target === null) return;
    fold(target);
    chosen = target;
    draw();
    look(cy.elements());
    say(`${target.label} is closed.`);
  }

  function choose(branch) {
    chosen = branch;
    mark();
    if (branch !== null) say(`${branch.label}: ${isLeaf(branch) ? DECIDED[decisionOf(branch.module)] : counted(branch.members.length, "module")}`);
  }

  /* Open the ancestors of a module, select it, and bring it into view. */
  function reveal(index) {
    const leaf = tree.leafOf[index];
    if (leaf === null || cy === null) return;
    let changed = false;
    for (let branch = leaf; branch !== null; branch = branch.parent) {
      if (branch !== leaf && !branch.isOpen) { unfold(branch); changed = true; }
      if (branch.parent === null && !isShown(branch)) { withPython = true; hidden.clear(); changed = true; syncLegend(); }
    }
    if (!drawn.has(index) && hidden.size) { hidden.clear(); changed = true; syncLegend(); }
    if (changed) { makeRoomFor(leaf); draw(); }
    choose(leaf);
    const around = cy.$id(leaf.id).closedNeighborhood().nodes().union(cy.elements(".chain").connectedNodes());
    look(isReadable(cy.elements()) ? cy.elements() : around);
  }

  function nextTowards(dx, dy) {
    const from = chosen !== null && cy.$id(chosen.id).nonempty() ? cy.$id(chosen.id).position() : null;
    const candidates = cy.nodes(":childless");
    if (from === null) return candidates[0];
    let best = null, least = Infinity;
    candidates.forEach((node) => {
      const x = node.position("x") - from.x, y = node.position("y") - from.y;
      const along = x * dx + y * dy, across = Math.abs(x * dy) + Math.abs(y * dx);
      if (along < 1 || along + 3 * across >= least) return;
      least = along + 3 * across;
      best = node;
    });
    return best;
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in ARROWS) {
      const node = nextTowards(...ARROWS[event.key]);
      if (node) { choose(tree.byId.get(node.id())); centerIfAway(node); }
    } else if (event.key === "Enter" && chosen !== null) act(chosen);
    else if (event.key === "Backspace" && chosen !== null) close(chosen);
    else if (event.key === "+") zoomBy(1.3);
    else if (event.key === "-") zoomBy(1 / 1.3);
    else if (event.key === "0") look(cy.elements(), { whole: true });
    else return;
    event.preventDefault();
  }

  function centerIfAway(node) {
    const { x, y } = node.renderedPosition();
    if (x < 30 || y < 30 || x > cy.width() - 30 || y > cy.height() - 30) cy.center(node);
  }

  function zoomBy(factor) {
    cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
  }

  /* Handle a click: show a module, or open a closed box. */
  function act(branch) {
    if (isLeaf(branch)) location.hash = addressOf(branch.module);
    else {
      details.showBranch(branch); // first, because the panel takes a part of the width
      if (!branch.isOpen) open(branch);
      else choose(branch);
    }
  }

  function zoomed() {
    return cy === null ? 1 : cy.zoom();
  }

  function syncLegend() {
    document.getElementById("python").checked = withPython;
    for (const box of document.querySelectorAll("[data-action]")) box.checked = !hidden.has(box.dataset.action);
  }

  function start() {
    if (cy !== null) return;
    cy = cytoscape({
      container: canvas, style: drawingStyles(zoomed), elements: [], layout: { name: "preset" }, boxSelectionEnabled: false,
      autoungrabify: true, hideEdgesOnViewport: nodes.length > 1500, minZoom: 0.02, maxZoom: 3,
    });
    cy.on("tap", "node", (event) => act(tree.byId.get(event.target.id())));
    cy.on("dbltap", "node.box", (event) => close(tree.byId.get(event.target.id())));
    cy.on("tap", (event) => { if (event.target === cy) choose(null); });
    cy.on("mouseover", "node", () => { canvas.style.cursor = "pointer"; });
    cy.on("mouseout", "node", () => { canvas.style.cursor = ""; });
    let waiting = 0;
    cy.on("zoom", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => cy.elements(".in, .out, .chain").updateStyle(), 60);
    });
    canvas.addEventListener("keydown", pressed);
    syncLegend();
    openOwnCode();
    draw();
    look(cy.elements(), { animated: false });
    new ResizeObserver(refit).observe(canvas);
  }

  /* Handle a resize of the canvas, which may switch between columns and rows. */
  function refit() {
    if (canvas.clientWidth === 0) return;
    cy.resize();
    if (isNarrow(room()) !== arrangedNarrow) {
      draw();
      look(cy.elements(), { animated: false });
    } else if (chosen !== null && cy.$id(chosen.id).nonempty()) centerIfAway(cy.$id(chosen.id));
  }

  /* Open the user's own code initially, if it is small enough for readable labels. */
  function openOwnCode() {
    const groups = tree.top.filter((branch) => branch.group !== undefined && isShown(branch));
    const isOwn = (branch) => known.groups[branch.group].kind === "code" && branch.members.some((index) => nodes[index].action === "intern");
    const own = groups.filter(isOwn);
    const space = room();
    for (const branch of own) {
      if (isLeaf(branch) || branch.children.length > READABLE) continue;
      unfold(branch);
      const { width, height } = arrange();
      if (width > space.width || height > space.height) fold(branch);
    }
  }

  document.getElementById("fit").addEventListener("click", () => look(cy.elements(), { whole: true }));
  document.getElementById("nearer").addEventListener("click", () => zoomBy(1.3));
  document.getElementById("farther").addEventListener("click", () => zoomBy(1 / 1.3));
  document.getElementById("expand").addEventListener("click", () => open(chosen));
  document.getElementById("collapse").addEventListener("click", () => close(chosen));
  document.getElementById("collapse-all").addEventListener("click", () => {
    for (const branch of tree.byId.values()) branch.isOpen = false;
    chosen = null;
    draw();
    look(cy.elements());
  });
  document.getElementById("python").addEventListener("change", (event) => {
    withPython = event.target.checked;
    draw();
    look(cy.elements());
  });
  for (const box of document.querySelectorAll("[data-action]"))
    box.addEventListener("change", () => {
      hidden[box.checked ? "delete" : "add"](box.dataset.action);
      draw();
    });

  return {
    start, reveal, open, close, act, choose,
    restyle: () => cy?.style(drawingStyles(zoomed)),
    get drawing() { return cy; },
  };
})();
