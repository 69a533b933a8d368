/* The tree that the graph shows: groups, packages in groups, modules in packages; open or closed. */

const tree = { top: [], byId: new Map(), leafOf: new Array(nodes.length).fill(null) };
const DEEPEST = 30;
const LONGEST_LABEL = 36;

function addBranch(parent, path) {
  const id = `b${tree.byId.size}`;
  const branch = { id, label: "", path, parent, children: [], module: null, members: [], depth: Infinity, isOpen: false };
  (parent === null ? tree.top : parent.children).push(branch);
  tree.byId.set(id, branch);
  return branch;
}

/* The paths from the group of a module to the module: ["a", "a.b", "a.b.c"]. */
function pathsTo(name) {
  const parts = name.split(".");
  const deep = parts.slice(0, DEEPEST).map((_, at) => parts.slice(0, at + 1).join("."));
  return parts.length > DEEPEST ? [...deep, name] : deep;
}

/* One branch for each component of a module's path, below that of its group. */
function growTree() {
  const groups = known.groups.map(() => null);
  nodes.forEach((node, index) => {
    if (node.group === null) return;
    const group = known.groups[node.group];
    if (group.kind === "saved") {
      addBranch(null, node.name).module = index;
      return;
    }
    groups[node.group] ??= { grown: new Map(), branch: Object.assign(addBranch(null, group.name), { group: node.group }) };
    const { grown } = groups[node.group];
    let { branch } = groups[node.group];
    for (const path of pathsTo(node.name)) {
      if (!grown.has(path)) grown.set(path, addBranch(branch, path));
      branch = grown.get(path);
    }
    branch.module = index;
  });
}

/* The label of a branch below its parent. */
function label(branch) {
  const above = branch.parent === null || branch.parent.group !== undefined ? branch.parent?.only ?? "" : branch.parent.path;
  const own = branch.path.startsWith(`${above}.`) && above ? branch.path.slice(above.length + 1) : branch.path;
  const text = nodes[branch.module]?.label ?? own.replace(/^<|>$/g, "");
  return text.length > LONGEST_LABEL ? `${text.slice(0, LONGEST_LABEL)}…` : text;
}

/* Merge branches with their only child. */
function pruneTree(branch) {
  while (branch.children.length === 1 && branch.module === null) {
    const [only] = branch.children;
    branch.children = only.children;
    branch.module = only.module;
    if (branch.group === undefined) branch.path = only.path;
    else branch.only = only.path;
    for (const child of branch.children) child.parent = branch;
  }
  branch.children.forEach(pruneTree);
}

/* Add a child for the code of a package itself, next to its submodules. */
function addOwnCode(branch) {
  branch.children.forEach(addOwnCode);
  if (branch.children.length === 0 || branch.module === null) return;
  const own = addBranch(branch, branch.path);
  own.label = "__init__";
  own.module = branch.module;
  branch.module = null;
}

function countMembers(branch) {
  branch.label ||= label(branch);
  branch.children.forEach(countMembers);
  if (branch.module !== null) {
    branch.members = [branch.module];
    branch.depth = nodes[branch.module].depth ?? Infinity;
    tree.leafOf[branch.module] = branch;
    return;
  }
  branch.members = branch.children.flatMap((child) => child.members);
  branch.depth = branch.children.reduce((least, child) => Math.min(least, child.depth), Infinity);
}

growTree();
for (const branch of tree.top) {
  pruneTree(branch);
  addOwnCode(branch);
  countMembers(branch);
}

function isLeaf(branch) {
  return branch.children.length === 0;
}

/* The modules of a branch by decision: [["intern", 12], ["mock", 1]]. */
function decisionsIn(branch) {
  const counts = new Map();
  for (const index of branch.members) {
    const decision = decisionOf(index);
    counts.set(decision, (counts.get(decision) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]);
}
