/* The details panel of one module or of one Python package in the graph. */

const RISKS = {
  untouched: "No run used it.",
  "used-at-import": "Code took names from it, at import time or in checks, where mocks work.",
  "not-observed": "No run with example inputs is recorded.",
  called: "A run used it, which raised NotImplementedError.",
};
const PROVIDERS = {
  stdlib: "Python itself", runtime: "torch or modpack", installed: "an installed distribution",
  local: "local code or an editable install, which pip cannot install",
};

const details = (() => {
  const panel = document.getElementById("details");
  let shown = 0;

  function fill(...content) {
    shown += 1;
    panel.replaceChildren(...content.flat(Infinity).filter((part) => part !== null && part !== undefined && part !== false));
    addBreaks(panel);
    panel.scrollTop = 0;
    document.body.classList.add("detailed");
  }

  function clear() {
    shown += 1;
    panel.replaceChildren();
    document.body.classList.remove("detailed");
  }

  function head(title, ...chips) {
    const shut = element("button", { type: "button", class: "shut", "aria-label": "Close the details", onclick: () => { location.hash = "#"; } }, "×");
    return element("header", {}, shut, element("h2", {}, title), element("p", { class: "chips" }, ...chips));
  }

  function chip(text, kind = "") {
    return element("span", { class: `chip ${kind}` }, text);
  }

  function part(title, ...content) {
    return element("section", {}, element("h3", {}, title), ...content);
  }

  function facts(rows) {
    const kept = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
    return element("dl", {}, kept.map(([label, value]) => [element("dt", {}, label), element("dd", {}, value)]));
  }

  /* One import in a list: the other module, the kind, the names, and the location. */
  function imported(edge, other) {
    const kind = known.kinds[edge.kind];
    return [
      moduleLink(other), " ", kind === "required" ? null : element("span", { class: "kind" }, kind), " ",
      edge.names.length ? element("span", { class: "names" }, edge.names.join(", ")) : null, " ", placeLink(edge.from, edge.line),
    ];
  }

  function chain(index) {
    const steps = chainTo(index);
    if (steps === null) {
      const edges = importersOf[index];
      const only = edges.length > 0 && edges.every((edge) => edge.kind === neverRuns);
      return element("p", { class: "hint" }, only ? "Only imports that never run (if TYPE_CHECKING) lead to it." : "No recorded import chain leads to it.");
    }
    if (steps.length === 0) return element("p", { class: "hint" }, "Import chains start here: this object was saved.");
    const first = element("li", {}, moduleLink(steps[0].from));
    const rest = steps.map((edge) => element("li", {}, imported(edge, edge.to)));
    return element("ol", { class: "steps" }, first, rest);
  }

  function mockFacts(index) {
    const mock = known.mocks[index];
    if (!mock) return null;
    const use = (each) => [
      element("code", {}, each.name), " ", element("span", { class: "kind" }, each.kind),
      " ", each.scope ? ["in ", element("code", {}, each.scope), " "] : null,
      indexOf.has(each.importer) ? placeLink(indexOf.get(each.importer), each.line) ?? moduleLink(indexOf.get(each.importer), each.line) : each.importer,
      each.via.length ? ` through ${each.via.join(", ")}` : null,
    ];
    const event = (each) => [each.kind, " ", each.name ? element("code", {}, each.name) : null, ` ${each.operation}`, each.location ? ` at ${each.location}` : null];
    return part(
      "Mocked", element("p", {}, chip(mock.observed, `risk ${mock.risk}`), ` ${RISKS[mock.risk]}`),
      mock.uses.length ? longList(mock.uses, use) : element("p", { class: "hint" }, "No uses of its names were found."),
      mock.runs || mock.events.length ? element("p", {}, element("b", {}, "self-test "), "recorded by the package", mock.events.length ? null : ": did not use it") : null,
      mock.events.length ? longList(mock.events, event) : null,
    );
  }

  function findings(subjects) {
    const found = findingsAbout(subjects);
    if (found.length === 0) return null;
    return part("Findings", longList(found, (each) => [
      chip(each.severity, each.severity), " ", element("code", {}, each.code), ` ${each.message} `, each.hint ? element("span", { class: "fix" }, each.hint) : null,
    ], 6));
  }

  function importList(title, edges, end) {
    if (edges.length === 0) return null;
    return part(`${title} (${edges.length})`, longList(edges, (edge) => imported(edge, edge[end])));
  }

  function sourcePart(index, line) {
    const node = nodes[index];
    if (node.action !== "intern") return null;
    const holder = element("div", {}, element("p", { class: "hint" }, "…"));
    const mine = shown;
    sources.read(node.name).then(
      (text) => { if (mine + 1 === shown) holder.replaceChildren(text === null ? missing(node) : sourceView(text, line)); },
      (failure) => holder.replaceChildren(element("p", { class: "hint" }, `The source cannot be unpacked in this browser: ${failure.message}`)),
    );
    return part("Source", holder);
  }

  function missing(node) {
    const why = sources.whyMissing(node.name) ?? "the report was generated without sources, or the module has none";
    const command = `modpack inspect ${sources.file} --source ${node.name}`;
    return element("p", { class: "hint" }, `Not shown: ${why}. To print it, run `, element("code", {}, command), ".");
  }

  function showModule(index, line = null) {
    const node = nodes[index];
    const group = groupOf(index);
    const decision = decisionOf(index);
    fill(
      head(
        node.name, chip(DECIDED[decision] ?? "not in the package", decision ?? "undecided"),
        group && group.kind !== "saved" ? chip(titleOf(group)) : null, group?.license ? chip(group.license) : null,
        tree.leafOf[index] ? element("a", { class: "button", href: "#graph", id: "in-graph" }, "Show in the graph") : null,
      ),
      facts([
        ["decided by", node.rule ?? (decision === null || decision === "saved" ? null : "not recorded")],
        ["overridden by", node.overridden], ["provided by", PROVIDERS[node.provided]],
        ["record", node.record], ["size", node.size === null || node.size === undefined ? null : humanSize(node.size)],
        ["", decision === null ? "Neither in the package nor extern. No rule matched it." : null],
      ]),
      part(decision === null ? "Imported through" : "Why it is in the package", chain(index)),
      mockFacts(index),
      findings(new Set([node.name])),
      importList("Needed by", importersOf[index], "from"),
      importList("Imports", importsOf[index], "to"),
      sourcePart(index, line),
    );
  }

  function showBranch(branch) {
    const group = branch.group !== undefined ? known.groups[branch.group] : null;
    const size = branch.members.reduce((sum, index) => sum + (nodes[index].size ?? 0), 0);
    const names = branch.members.map((index) => nodes[index].name);
    const wanted = new Set(group ? [...names, group.name] : names);
    fill(
      head(
        group ? titleOf(group) : branch.path, chip(counted(branch.members.length, "module")),
        group?.license ? chip(group.license) : null, group?.editable ? chip("editable", "warning") : null,
      ),
      facts([
        ["decisions", decisionsIn(branch).map(([decision, number]) => `${number} ${decision}`).join(", ")],
        ["code", size ? humanSize(size) : null],
      ]),
      findings(wanted),
      part("Modules", longList(branch.members, (index) => moduleLink(index), 40)),
    );
  }

  return { showModule, showBranch, clear };
})();
