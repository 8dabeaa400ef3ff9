// Asks for an API key. The browser's own dialog element keeps the focus inside and closes on Escape.
import { html, useEffect, useRef } from "../lib/dom.js";
import { hasApiKey } from "../lib/api.js";

// Args: refused: whether the server has refused the key that was given; onDone(key): "" forgets it, null leaves it as it is.
export function KeyDialog({ refused, onDone }) {
  const dialog = useRef(null);
  const input = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
    input.current.focus();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    onDone(input.current.value.trim());
  };
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onClose=${() => onDone(null)}>
    <form onSubmit=${submit}>
      <h2 id="key-title">API key</h2>
      <p>One of this server's keys. It is kept in this page's memory alone and forgotten when the page is closed or reloaded.</p>
      ${refused && html`<p class="error" role="alert">The server does not know the key that was given.</p>`}
      <label>Key <input ref=${input} type="password" autocomplete="off" spellcheck="false" pattern="[ -~]*" title="Letters, digits and signs of ASCII" /></label>
      <p class="row">
        <button type="submit">Use it</button>
        ${hasApiKey() && html`<button type="button" class="quiet" onClick=${() => onDone("")}>Forget the key</button>`}
        <button type="button" class="quiet" onClick=${() => onDone(null)}>Cancel</button>
      </p>
    </form>
  </dialog>`;
}
