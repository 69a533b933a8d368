"use strict";
/* The data of the page, which boot.js unpacked: modules, groups, imports; and queries on it. */

const nodes = known.nodes;
const indexOf = new Map(nodes.map((node, index) => [node.name, index]));
const importsOf = nodes.map(() => []);
const importersOf = nodes.map(() => []);
const neverRuns = known.kinds.indexOf("type-checking");
const isParent = known.kinds.indexOf("parent");

for (const [from, to, kind, line, names] of known.edges) {
  const edge = { from, to, kind, line, names };
  importsOf[from].push(edge);
  importersOf[to].push(edge);
}

const DECIDED = { intern: "interned", extern: "externed", mock: "mocked", deny: "denied", saved: "saved" };

/* The decision about a module. "saved" for saved objects, null without a decision. */
function decisionOf(index) {
  const node = nodes[index];
  return node.action ?? (node.group === null ? null : "saved");
}

/* The strongest evidence for one step of a chain, preferably with a line. */
function evidence(from, to) {
  const edges = importsOf[from].filter((edge) => edge.to === to && edge.kind !== neverRuns);
  const weakness = (edge) => 100 * (edge.line === null) + edge.kind;
  return edges.reduce((best, edge) => (weakness(edge) < weakness(best) ? edge : best));
}

/* The steps of a shortest chain from a saved object to a module, or null. */
function chainTo(index) {
  if (nodes[index].depth === null) return null;
  const steps = [];
  for (let at = index; nodes[at].previous !== null; at = nodes[at].previous)
    steps.unshift(evidence(nodes[at].previous, at));
  return steps;
}

function groupOf(index) {
  const group = nodes[index].group;
  return group === null ? null : known.groups[group];
}

function titleOf(group) {
  return group.version ? `${group.name} ${group.version}` : group.name;
}

function findingsAbout(subjects) {
  return known.findings.filter((finding) => subjects.has(finding.subject));
}

function humanSize(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; bytes >= 999.95 && unit < units.length - 1; unit += 1) bytes /= 1000;
  return unit === 0 ? `${bytes} B` : `${bytes.toFixed(1)} ${units[unit]}`;
}

function counted(number, noun) {
  return number === 1 ? `1 ${noun}` : `${number} ${noun}s`;
}

/* Modules that match a search: exact names first, then names that begin with the text, then names
   whose last part does, then names that contain it. */
function search(typed, most) {
  const wanted = typed.trim().toLowerCase();
  if (!wanted) return [];
  const found = [];
  nodes.forEach((node, index) => {
    const name = node.name.toLowerCase();
    const at = name.indexOf(wanted);
    if (at < 0) return;
    const last = name.slice(name.lastIndexOf(".") + 1);
    const rank = name === wanted ? 0 : at === 0 || last === wanted ? 1 : last.startsWith(wanted) ? 2 : 3;
    found.push({ index, rank: rank + (decisionOf(index) === null ? 4 : 0), length: name.length });
  });
  found.sort((a, b) => a.rank - b.rank || a.length - b.length || a.index - b.index);
  return found.slice(0, most).map((each) => each.index);
}
