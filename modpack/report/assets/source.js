/* Sources, unpacked when they are shown, with simple syntax highlighting. */

const sources = (() => {
  let stored = null;

  function all() {
    stored ??= JSON.parse(document.getElementById("sources").textContent);
    return stored;
  }

  /* The source of a module, or null if the page does not contain it. */
  async function read(name) {
    if (!Object.hasOwn(all().texts, name)) return null;
    return unpacked(all().texts[name]);
  }

  function whyMissing(name) {
    return Object.hasOwn(all().missing, name) ? all().missing[name] : null;
  }

  return { read, whyMissing, get file() { return all().file; } };
})();

const TOKENS = new RegExp(
  [
    /(?<comment>#[^\n]*)/,
    /(?<text>[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|(?![^]))|'''[^]*?(?:'''|(?![^]))|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))/,
    /(?<keyword>\b(?:False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b)/,
    /(?<number>\b\d[\d_.eExXa-fA-F]*\b)/,
    /(?<decorator>^[ \t]*@[\w.]+)/,
  ].map((part) => part.source).join("|"),
  "gm",
);
const MAX_COLORED = 300000;

/* Python source as highlighted nodes. Very long texts stay plain. */
function colored(text) {
  if (text.length > MAX_COLORED) return document.createTextNode(text);
  const made = document.createDocumentFragment();
  let at = 0;
  for (const match of text.matchAll(TOKENS)) {
    if (match.index > at) made.append(text.slice(at, match.index));
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    made.append(element("span", { class: kind }, match[0]));
    at = match.index + match[0].length;
  }
  made.append(text.slice(at));
  return made;
}

/* A source with line numbers and one marked line. */
function sourceView(text, line) {
  const count = text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
  const numbers = Array.from({ length: count }, (_, index) => index + 1).join("\n");
  const code = element("pre", { class: "code", tabindex: "0", "aria-label": "source" }, colored(text));
  const view = element("div", { class: "lines" }, element("pre", { class: "numbers", "aria-hidden": "true" }, numbers), code);
  if (line !== null && line >= 1 && line <= count) {
    const marker = element("div", { class: "marker" });
    view.append(marker);
    requestAnimationFrame(() => {
      const height = parseFloat(getComputedStyle(code).lineHeight);
      marker.style.top = `${(line - 1) * height}px`;
      marker.style.height = `${height}px`;
      view.scrollTop = Math.max(0, (line - 6) * height);
    });
  }
  return view;
}
