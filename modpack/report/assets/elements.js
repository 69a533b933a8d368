/* Elements of the page. Text is always inserted as text, never as markup. */

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

function addressOf(index, line = null) {
  const address = `#module=${encodeURIComponent(nodes[index].name)}`;
  return line === null ? address : `${address}&line=${line}`;
}

function moduleLink(index, line = null) {
  const kind = decisionOf(index);
  const link = element("a", { class: `module ${kind ?? "undecided"}`, href: addressOf(index, line) });
  link.append(element("i", { class: "swatch" }), nodes[index].name);
  return link;
}

/* A link such as "net.py:3" to a line of the importer's source. */
function placeLink(index, line) {
  const record = nodes[index].record;
  if (line === null || !record) return null;
  return element("a", { class: "place", href: addressOf(index, line) }, `${record}:${line}`);
}

/* The start of a long list, and a button that shows the rest. */
function longList(items, render, most = 12) {
  const list = element("ul", { class: "list" }, items.slice(0, most).map((item) => element("li", {}, render(item))));
  if (items.length <= most) return list;
  const rest = () => {
    more.remove();
    list.append(...items.slice(most).map((item) => element("li", {}, render(item))));
    addBreaks(list);
  };
  const more = element("button", { type: "button", class: "more", onclick: rest }, `show ${items.length - most} more`);
  return [list, more];
}

/* Let long names break after separators, and long digests anywhere. */
const LONG_WORD = /(\S{25,})/;
const DIGEST = /^[0-9a-f]{32,}$/;

function addBreaks(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const text = walker.currentNode;
    if (LONG_WORD.test(text.data) && text.parentElement.closest("pre, script") === null) found.push(text);
  }
  for (const text of found) {
    const pieces = text.data.split(LONG_WORD).flatMap((word, at) => (at % 2 ? piecesOf(word) : [word]));
    text.replaceWith(...pieces.flatMap((piece, at) => (at ? [document.createElement("wbr"), piece] : [piece])));
  }
}

function piecesOf(word) {
  return DIGEST.test(word) ? word.match(/.{1,8}/g) : word.split(/(?<=[^\w]|_)(?=[^\W_])/);
}
