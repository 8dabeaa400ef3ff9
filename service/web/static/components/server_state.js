// Says that the server is busy or does not answer, and when it answers again.
import { html, useEffect, useState } from "../lib/dom.js";
import { ask, serverState, subscribe } from "../lib/api.js";

const PROBE_SECONDS = 3;

export function ServerState() {
  const [state, setState] = useState(serverState());
  useEffect(() => subscribe("state", setState), []);
  const troubled = state.kind !== "ok";
  useEffect(() => {
    if (!troubled) return undefined;
    const timer = setInterval(() => ask({ path: "/models" }).catch(() => {}), PROBE_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [troubled]);
  return html`<div class="state" role="status" aria-live="polite">
    ${troubled && html`<p class=${`banner ${state.kind}`}>${state.message} This page asks again every ${PROBE_SECONDS} seconds.</p>`}
  </div>`;
}
