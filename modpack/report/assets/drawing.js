/* The style of the graph. */

/* A color of the style sheet in the current color scheme. */
function color(name) {
  const probe = document.body;
  probe.style.color = `var(--${name})`;
  const resolved = getComputedStyle(probe).color;
  probe.style.color = "";
  return resolved;
}

/* The style sheet for Cytoscape. zoomed() returns the zoom level. */
function drawingStyles(zoomed) {
  const nearness = () => Math.min(1, Math.max(zoomed(), 0.05)); // so that marked arrows are visible from afar
  const decisions = ["intern", "extern", "mock", "deny", "saved"];
  const soft = new Map(decisions.map((decision) => [decision, color(`${decision}-soft`).replaceAll(" ", "")]));
  const stops = (node) => {
    const parts = node.data("decisions"), sum = parts.reduce((s, [, n]) => s + n, 0);
    let at = 0;
    return parts.flatMap(([decision, number]) => {
      const from = at;
      at += (100 * number) / sum;
      return [[decision, from], [decision, at]];
    });
  };
  return [
    { selector: "node", style: {
      shape: "round-rectangle", width: "data(width)", height: "data(height)", label: "data(label)",
      "font-family": "system-ui, sans-serif", "font-size": 13, color: color("ink"), "text-wrap": "wrap",
      "text-valign": "center", "text-halign": "center", "border-width": 1.5, "min-zoomed-font-size": 5,
      "background-color": color("surface"), "line-height": 1.2 } },
    ...decisions.map((decision) => ({ selector: `node[decision = "${decision}"]`, style: {
      "background-color": soft.get(decision), "border-color": color(decision) } })),
    { selector: "node[decision = 'extern']", style: { "border-style": "dashed" } },
    { selector: "node[decision = 'mock']", style: { shape: "cut-rectangle" } },
    { selector: "node[decision = 'saved']", style: { shape: "round-tag", "text-margin-x": -12 } },
    { selector: "node[decisions]", style: {
      "background-fill": "linear-gradient", "background-gradient-direction": "to-right",
      "background-gradient-stop-colors": (node) => stops(node).map(([decision]) => soft.get(decision)).join(" "),
      "background-gradient-stop-positions": (node) => stops(node).map(([, at]) => `${at}%`).join(" ") } },
    { selector: "node[risk = 1]", style: { "border-color": color("error"), "border-width": 2.5 } },
    { selector: "node.closed", style: { "border-width": 2, "font-weight": 600 } },
    { selector: "node.box", style: {
      "background-fill": "solid", "background-color": color("box"), "background-opacity": 0.55, "border-style": "solid",
      "border-width": 1, "border-color": color("line"), "text-valign": "top", "text-margin-y": 22,
      "font-weight": 600, padding: "26px", color: color("muted") } },
    { selector: "edge", style: {
      width: "data(width)", "line-color": color("edge"), "target-arrow-color": color("edge"), opacity: 0.55,
      "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "bezier" } },
    { selector: "edge.many", style: { opacity: 0.22, width: 1 } },
    { selector: ".faded", style: { opacity: 0.12, "text-opacity": 0.6 } },
    { selector: "node.faded", style: { opacity: 0.5 } },
    { selector: "edge.in, edge.out", style: { opacity: 0.9, "z-index": 5 } },
    { selector: "edge.in", style: { "line-color": color("importer"), "target-arrow-color": color("importer") } },
    { selector: "edge.out", style: { "line-color": color("imported"), "target-arrow-color": color("imported") } },
    { selector: "edge.in, edge.out", style: { width: (edge) => edge.data("width") / nearness() } },
    { selector: "edge.chain", style: {
      opacity: 1, "line-color": color("chain"), "target-arrow-color": color("chain"), width: () => 3.5 / nearness(), "z-index": 9 } },
    { selector: "node.chosen", style: { "border-width": 3.5, "border-color": color("chain"), "border-style": "solid" } },
  ];
}
