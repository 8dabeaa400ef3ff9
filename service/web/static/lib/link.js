// The view and its state in the address, behind "#", which browsers do not send: texts that somebody tries stay here.
import { useEffect, useState } from "./dom.js";

export function readLink(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const state = {};
  for (const [name, value] of new URLSearchParams(query)) {
    try {
      state[name] = JSON.parse(value);
    } catch {
      state[name] = value; // written by hand, without quotes
    }
  }
  return { view: path || "try", state };
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
