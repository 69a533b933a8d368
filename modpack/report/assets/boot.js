"use strict";
/* Unpacks the data of the page and its scripts. If that fails, the page stays readable, as it is
   without scripts. */

/* Decompress a text (raw deflate in base64). */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
}

let known = null;

async function start() {
  const parts = ["data", "library", "script"].map((id) => document.getElementById(id).textContent);
  const [data, ...scripts] = await Promise.all(parts.map(unpacked));
  known = JSON.parse(data);
  for (const text of scripts) {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  }
}

document.documentElement.classList.add("scripted");
start().catch((failure) => {
  document.documentElement.classList.remove("scripted");
  document.getElementById("unstarted").hidden = false;
  throw failure;
});
