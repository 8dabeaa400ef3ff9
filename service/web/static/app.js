// The frame of the page: navigation, theme, API key, server state; it loads one view at a time.
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./lib/dom.js";
import { setApiKey, subscribe } from "./lib/api.js";
import { readLink, useLink, writeLink } from "./lib/link.js";
import { KeyDialog } from "./components/key_dialog.js";
import { ServerState } from "./components/server_state.js";

const VIEWS = {
  search: { title: "Search", about: "Your texts and pictures by meaning, and a map of them", load: () => import("./views/search.js") },
  try: { title: "Try", about: "Vectors, similarity, rankings and sparse weights of your texts", load: () => import("./views/try.js") },
  positions: { title: "Positions", about: "Positional encodings, compared", load: () => import("./views/positions.js") },
  models: { title: "Models", about: "What this server holds", load: () => import("./views/models.js") },
  now: { title: "Now", about: "What this server is doing", load: () => import("./views/now.js") },
};
const RETRY_MILLISECONDS = 3000; // until a view that could not be loaded is tried again
const THEMES = ["auto", "light", "dark"];
const GUIDES = document.querySelector('meta[name="documentation"]')?.content; // of INLAY_DOCS_URL

function ThemeButton() {
  const [theme, setTheme] = useState(document.documentElement.dataset.choice);
  const choose = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    document.documentElement.dataset.choice = next;
    try {
      localStorage.setItem("inlay-theme", next);
    } catch {
      // storage is switched off: the choice lasts as long as the page
    }
    setTheme(next);
    dispatchEvent(new Event("themechange"));
  };
  return html`<button class="quiet" onClick=${choose} aria-label=${`Theme: ${theme}. Change`}>Theme: ${theme}</button>`;
}

// The last state of each view, kept while the page is open: the links of the navigation lead back to it.
const lastStates = new Map();

// A view, or what is said in its place when it fails, until the link changes.
function Guarded({ name, View, state, setState }) {
  const [error, forget] = useErrorBoundary();
  useEffect(forget, [state]);
  if (!error) return html`<${View} state=${state} setState=${setState} />`;
  return html`<p role="alert" class="error">This view failed: ${String(error.message)}. <a href=${`#/${name}`}>Open it without what its link says</a></p>`;
}

const viewOf = ({ view }) => (Object.hasOwn(VIEWS, view) ? view : "search");

function Frame() {
  const [link, setLink] = useLink();
  const name = viewOf(link);
  lastStates.set(name, link.state);
  const setState = (state) => {
    lastStates.set(name, state);
    if (viewOf(readLink()) === name) setLink({ view: name, state }); // a view that is being left writes no address
  };
  const address = (view) => writeLink({ view, state: lastStates.get(view) ?? {} });
  const [loaded, setLoaded] = useState({});
  const [dialog, setDialog] = useState(null);
  const declined = useRef(false); // the dialog stays closed after Cancel, until somebody asks for it
  const askKey = () => {
    declined.current = false;
    setDialog({ refused: false });
  };
  useEffect(() => subscribe("unauthorized", (refused) => declined.current || setDialog({ refused })), []);
  useEffect(() => subscribe("wantsKey", askKey), []);
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    document.title = `${VIEWS[name].title} · Inlay`;
    let current = true;
    let timer;
    VIEWS[name].load().then(
      (module) => current && setLoaded({ name, View: module.default }),
      (error) => {
        if (!current) return;
        setLoaded({ name, error });
        timer = setTimeout(() => setAttempt(attempt + 1), RETRY_MILLISECONDS);
      },
    );
    return () => {
      clearTimeout(timer);
      current = false;
    };
  }, [name, attempt]);
  const { View, error } = loaded.name === name ? loaded : {};
  return html`
    <header class="top">
      <a class="brand" href=${address("search")}><img src="/web/icon.svg" alt="" width="24" height="24" />Inlay</a>
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(
          ([each, view]) => html`<a href=${address(each)} aria-current=${each === name ? "page" : undefined}>${view.title}</a>`,
        )}
      </nav>
      <div class="tools">
        ${GUIDES && html`<a href=${GUIDES} title="Documentation">Guides</a>`}
        <a href="/docs" title="API reference">API</a>
        <button class="quiet" onClick=${askKey}>API key</button>
        <${ThemeButton} />
      </div>
    </header>
    <${ServerState} />
    <main id="main" tabindex="-1" aria-busy=${!View && !error}>
      <h1>${VIEWS[name].title} <small>${VIEWS[name].about}</small></h1>
      ${error && html`<p role="alert" class="error">This view could not be loaded: ${String(error.message)}. It is tried again every ${RETRY_MILLISECONDS / 1000} seconds.</p>`}
      ${View && html`<${Guarded} key=${name} name=${name} View=${View} state=${link.state} setState=${setState} />`}
    </main>
    <footer class="foot note">
      Every request of this page is in the <a href="/docs">API reference</a> (OpenAPI, with a form for each). <code>inlay --help</code> lists the commands: serve, export, embed and more.
    </footer>
    ${dialog &&
    html`<${KeyDialog}
      refused=${dialog.refused}
      onDone=${(key) => {
        declined.current = !key;
        setDialog(null);
        if (key !== null) setApiKey(key);
      }}
    />`}
  `;
}

// The address names the view, so the link of the static page cannot be followed: the focus is moved.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
const place = document.getElementById("app");
place.replaceChildren();
render(html`<${Frame} />`, place);
