/* Tabs, addresses, search, and color scheme. */

(() => {
  const parts = [...document.querySelectorAll("main > section.part")];
  const tabs = [...document.querySelectorAll("nav.tabs a")];
  const field = document.getElementById("search");
  const found = document.getElementById("found");
  const MAX_FOUND = 40;
  let current = parts[0].id;
  let module = null;

  function showPart(id) {
    current = id;
    for (const part of parts) part.classList.toggle("shown", part.id === id);
    for (const tab of tabs) {
      if (tab.hash === `#${id}`) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    if (id === "graph") {
      graph.start();
      if (module !== null) graph.reveal(module);
    }
  }

  /* "#mocks" selects a tab. "#module=net.blocks&line=3" shows a module next to the current tab. */
  function follow() {
    const address = location.hash.slice(1);
    if (address.startsWith("module=")) {
      const [name, line] = address.slice("module=".length).split("&line=");
      const index = indexOf.get(decoded(name));
      if (index === undefined) return;
      module = index;
      details.showModule(index, /^\d+$/.test(line ?? "") ? Number(line) : null);
      if (document.activeElement === field) document.getElementById("details").focus();
      if (current === "graph") graph.reveal(index);
    } else if (parts.some((part) => part.id === address)) {
      showPart(address);
    } else {
      module = null;
      details.clear();
    }
  }

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch (failure) {
      if (failure instanceof URIError) return text;
      throw failure;
    }
  }

  let results = [];
  let active = -1;

  function suggest() {
    results = search(field.value, MAX_FOUND);
    activate(results.length ? 0 : -1);
    const options = results.map((index, row) => {
      const option = element("li", { role: "option", id: `found-${row}`, class: decisionOf(index) ?? "undecided", "aria-selected": String(row === active) });
      option.append(element("i", { class: "swatch" }), nodes[index].name);
      option.addEventListener("mousedown", (event) => { event.preventDefault(); take(row); });
      return option;
    });
    const none = element("li", { class: "none" }, "no such module");
    found.replaceChildren(...(options.length || !field.value.trim() ? options : [none]));
    addBreaks(found);
    found.hidden = !field.value.trim();
    field.setAttribute("aria-expanded", String(!found.hidden));
  }

  function activate(row) {
    active = row;
    [...found.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === row)));
    if (row >= 0) {
      field.setAttribute("aria-activedescendant", `found-${row}`);
      found.children[row]?.scrollIntoView({ block: "nearest" });
    } else field.removeAttribute("aria-activedescendant");
  }

  function take(row) {
    location.hash = addressOf(results[row]);
    hideFound();
    document.getElementById("details").focus(); // now if the module is shown already, otherwise once it is
  }

  function hideFound() {
    found.hidden = true;
    field.setAttribute("aria-expanded", "false");
  }

  field.addEventListener("input", suggest);
  field.addEventListener("focus", () => { if (field.value) suggest(); });
  field.addEventListener("blur", hideFound);
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && results.length) activate((active + 1) % results.length);
    else if (event.key === "ArrowUp" && results.length) activate((active + results.length - 1) % results.length);
    else if (event.key === "Enter" && active >= 0) take(active);
    else if (event.key === "Escape") { field.value = ""; hideFound(); field.blur(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && document.activeElement.tagName !== "INPUT") {
      event.preventDefault();
      field.focus();
      field.select();
    } else if (event.key === "Escape" && document.body.classList.contains("detailed")) location.hash = "#";
  });

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    graph.restyle();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", graph.restyle);

  for (const code of document.querySelectorAll("pre.source.python")) code.replaceChildren(colored(code.textContent));
  window.addEventListener("hashchange", follow);
  addBreaks(document.querySelector("main"));
  showPart(current);
  follow();
  window.modpackReport = { graph, search };
})();
