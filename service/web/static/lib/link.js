// The view and its state in the address, behind "#", which browsers do not send: texts that somebody tries stay here.
import { useEffect, useState } from "./dom.js";

export function readLink(hash = location.hash) {
  const [path, ...query] = hash.replace(/^#\/?/, "").split("?");
  const state = {};
  for (const [name, value] of new URLSearchParams(query.join("?"))) {
    if (name in Object.prototype) continue;
    try {
      state[name] = JSON.parse(value, harmless);
    } catch {
      state[name] = value; // written by hand, without quotes
    }
  }
  return { view: path.replace(/\/$/, "") || "search", state };
}

// A value of a link that anybody may have written: without halves of surrogate pairs, which no request can carry, and without
// members such as toString, which would break the object that has them.
function harmless(name, value) {
  if (name in Object.prototype) return undefined;
  return typeof value === "string" ? whole(value) : value;
}

// The text with U+FFFD in place of halves of surrogate pairs.
export function whole(text) {
  return text.replace(/[\ud800-\udfff]/gu, "\ufffd"); // with the flag u a pair is one character, outside this range
}

export function writeLink({ view, state }) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value === undefined || value === null || value === "") continue;
    const plain = typeof value === "string" && !isJson(value);
    query.set(name, plain ? value : JSON.stringify(value));
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// [link, setLink]: setLink replaces the address, so that dragging leaves no trail in the history.
export function useLink() {
  const [link, setLink] = useState(readLink());
  useEffect(() => {
    const follow = () => setLink(readLink());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return [
    link,
    (next) => {
      history.replaceState(null, "", writeLink(next));
      setLink(next);
    },
  ];
}
