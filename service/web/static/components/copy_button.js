// Copies a text, or what a function returns at that moment, and says so.
import { html, useEffect, useState } from "../lib/dom.js";

export function CopyButton({ text, label = "Copy" }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(() => setSaid(""), 2000);
    return () => clearTimeout(timer);
  }, [said]);
  const copy = async () => setSaid((await copied(typeof text === "function" ? text() : text)) ? "Copied" : "Select and copy by hand");
  return html`<button type="button" class="copy" onClick=${copy}>${said || label}</button>
    <span class="hidden" role="status">${said}</span>`;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text); // the clipboard is for https and localhost alone
  }
}

function copiedBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
