// One map: a model's vectors in the plane, the query among them; moved, enlarged, and asked with a lasso.
import { html, useEffect, useMemo, useRef, useState, useTheme } from "../../lib/dom.js";
import { shortened } from "../../components/heatmap.js";
import { OTHER } from "./looks.js";
import { addressOf } from "./roles.js";
import { Scene } from "./scene.js";

export const UMAP_POINTS = [12, 4000]; // fewer have no neighbourhood; of more, a worker would seek the neighbours for longer than seconds
const THUMBNAIL = 96;
const MOST_PICTURES = 500;
const STEPS = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
const NEARER = 1.4;
export const LASSO = "Lasso";
export const ZOOM = "Zoom";

// {data, progress, stop} of a worker's last answer, or {error}; null until there is one. A new message ends the work on the one before, and
// so does stop(); a null message is nothing to do.
export function useWorker(file, message, inputs) {
  const [result, setResult] = useState(null);
  useEffect(() => {
    setResult(null);
    if (!message) return undefined;
    const module = file !== "layout_worker.js";
    const worker = new Worker(new URL(file, import.meta.url), module ? { type: "module" } : {});
    const stop = () => (worker.terminate(), setResult((before) => ({ ...before, stopped: true })));
    worker.onmessage = ({ data }) => setResult({ ...data, stop });
    worker.onerror = (event) => setResult({ error: new Error(event.message || "it stopped") });
    worker.postMessage(message);
    return () => worker.terminate();
  }, inputs);
  return result;
}

// {data: points of a run once it is whole} | {error} | null.
export function useLayout(run, whole, layout) {
  const wanted = whole && run.done > 1;
  const spread = layout === "neighbours";
  const message = wanted ? { job: "components", vectors: run.vectors, width: run.width } : null;
  return useWorker(spread ? "layout_worker.js" : "map_worker.js", message, [wanted, run?.vectors, spread]);
}

// Small pictures of a collection for the canvas, null while there are none or too many.
function useThumbnails(pictures) {
  const [thumbnails, setThumbnails] = useState(null);
  useEffect(() => {
    let current = true;
    setThumbnails(null);
    if (!pictures || pictures.length > MOST_PICTURES) return undefined;
    const small = (blob) => createImageBitmap(blob, { resizeHeight: THUMBNAIL, resizeQuality: "medium" }).catch(() => null);
    Promise.all(pictures.map(small)).then((made) => current && setThumbnails(made));
    return () => {
      current = false;
    };
  }, [pictures]);
  return thumbnails;
}

// Between hits, nearer to the better ones: [x, y] in the plane.
function starOf(points, hits) {
  const weights = hits.map(({ score }) => Math.exp(20 * (score - hits[0].score)));
  const sum = weights.reduce((all, weight) => all + weight, 0);
  return [0, 1].map((axis) => hits.reduce((all, { index }, place) => all + (weights[place] / sum) * points[2 * index + axis], 0));
}

// Args: name: of the map; points; look, captions: of looksOf; lit: Uint8Array or null; hits: [{index, score}] that lines lead to; links: [[from, to]];
// over, setOver: the point that is pointed at; tool: what dragging does, LASSO, ZOOM or null; onLasso(indices); onPick(index).
export function TextMap({ name, collection, result, look, captions, lit, hits, links, over, setOver, tool, onLasso, onPick }) {
  const canvas = useRef(null);
  const scene = useRef(null);
  const fingers = useRef(new Map()); // pointers that are down: {x, y}
  const pressed = useRef(null); // {far, tool, outline}
  const [tip, setTip] = useState(null);
  const theme = useTheme();
  const thumbnails = useThumbnails(collection.pictures);
  const points = result?.data;
  const ready = Boolean(points);
  useEffect(() => {
    scene.current = new Scene(canvas.current);
    const observer = new ResizeObserver(() => {
      const { clientWidth: width, clientHeight: height } = canvas.current;
      Object.assign(scene.current, { width, height, ratio: devicePixelRatio || 1 }).request();
    });
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!ready) return;
    scene.current.setPoints(points);
    scene.current.home();
    setTip(null);
  }, [points, ready]);
  useEffect(() => {
    if (!ready) return;
    const fits = look?.length === points.length / 2; // until the clusters are found, all points are grey
    scene.current.setLook(fits ? look : new Uint8Array(points.length / 2).fill(OTHER));
    scene.current.setCaptions(fits ? captions : []);
    scene.current.request();
  }, [points, ready, look, captions]);
  const star = useMemo(() => (ready && hits.length ? starOf(points, hits) : null), [ready, points, hits]);
  useEffect(() => {
    Object.assign(scene.current, { lit, links, over: over !== null && points && over < points.length / 2 ? over : null, star, hits: hits.map(({ index }) => index), texts: collection.texts, pictures: thumbnails }).request();
  }, [lit, links, over, star, hits, thumbnails, theme, ready]);

  const turn = (act) => {
    if (!ready) return;
    act(scene.current);
    canvas.current.style.touchAction = tool || scene.current.view.zoom > 1 ? "none" : "pan-y";
    setTip(null);
    scene.current.request();
  };
  useEffect(() => turn(() => {}), [tool]);
  const down = (event) => {
    canvas.current.setPointerCapture(event.pointerId);
    fingers.current.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    pressed.current = { far: 0, tool: event.shiftKey ? LASSO : event.altKey ? ZOOM : tool, outline: [[event.offsetX, event.offsetY]] };
  };
  const move = (event) => {
    if (!ready) return;
    const { offsetX: x, offsetY: y } = event;
    const before = fingers.current.get(event.pointerId);
    if (!before) {
      const found = scene.current.find(x, y);
      setOver(found);
      return setTip(found === null ? null : { index: found, x, y });
    }
    const other = [...fingers.current].find(([id]) => id !== event.pointerId)?.[1];
    fingers.current.set(event.pointerId, { x, y });
    pressed.current.far += Math.abs(x - before.x) + Math.abs(y - before.y);
    const { tool: held, outline } = pressed.current;
    if (other) {
      const apart = (point) => Math.hypot(point.x - other.x, point.y - other.y) || 1;
      turn((own) => own.zoom(apart({ x, y }) / apart(before), other.x, other.y));
    } else if (held) {
      const [left, top] = outline[0];
      if (held === ZOOM) outline.splice(1, 3, [x, top], [x, y], [left, y]);
      else outline.push([x, y]);
      turn((own) => Object.assign(own, { outline }));
    } else turn((own) => own.move(x - before.x, y - before.y));
  };
  const up = (event) => {
    fingers.current.delete(event.pointerId);
    const was = pressed.current;
    if (!ready || !was || fingers.current.size) return;
    pressed.current = null;
    if (was.far >= 5 && was.tool === LASSO) onLasso(scene.current.inside(was.outline));
    turn((own) => (Object.assign(own, { outline: null }), was.far >= 5 && was.tool === ZOOM && was.outline[2] && own.enlarge(was.outline.slice(0, 3))));
    const found = was.far < 5 && event.type === "pointerup" ? scene.current.find(event.offsetX, event.offsetY) : null;
    if (found !== null) onPick(found);
  };
  const press = (event) => {
    const step = STEPS[event.key];
    const nearer = { "+": NEARER, "=": NEARER, "-": 1 / NEARER }[event.key];
    if (step) turn((own) => own.move(...step));
    else if (nearer) turn((own) => own.zoom(nearer));
    else if (event.key === "0") turn((own) => own.home());
    else return;
    event.preventDefault();
  };
  const wheel = (event) => {
    if (document.activeElement !== canvas.current && !event.ctrlKey) return; // until it is chosen, the wheel scrolls the page
    event.preventDefault();
    turn((own) => own.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY));
  };
  return html`<div class="figure map-figure">
    <canvas
      ref=${canvas}
      tabindex="0"
      role="img"
      aria-label=${`Map of ${collection.texts.length} texts by ${name}${hits.length ? `, lines to ${hits.length} hits` : ""}: arrows move it, plus and minus zoom, 0 shows all`}
      class=${tool ? "drawing" : ""}
      data-drawn=${ready && look ? look.length : 0}
      onPointerDown=${down}
      onPointerMove=${move}
      onPointerUp=${up}
      onPointerCancel=${up}
      onPointerLeave=${() => (setOver(null), setTip(null))}
      onKeyDown=${press}
      onWheel=${wheel}
    ></canvas>
    <div class="zooms">
      <button type="button" class="quiet" aria-label=${`Zoom in, ${name}`} onClick=${() => turn((own) => own.zoom(NEARER))}>+</button>
      <button type="button" class="quiet" aria-label=${`Zoom out, ${name}`} onClick=${() => turn((own) => own.zoom(1 / NEARER))}>−</button>
      <button type="button" class="quiet" aria-label=${`Whole map, ${name}`} onClick=${() => turn((own) => own.home())}>⤢</button>
    </div>
    ${!ready && html`<p class="note map-wait" role="status">${result?.error ? `The map could not be made: ${result.error.message}.` : result ? `Placing the points: ${Math.round(100 * result.progress)} %` : collection.running || !collection.error ? "The map is drawn once all is embedded…" : "The map needs all vectors."}</p>`}
    ${tip && html`<${Tip} ...${tip} collection=${collection} room=${canvas.current} />`}
  </div>`;
}

function Tip({ index, x, y, collection: { texts, columns, pictures }, room }) {
  const left = x > room.clientWidth / 2;
  const place = { [left ? "right" : "left"]: `${(left ? room.clientWidth - x : x) + 14}px`, [y > room.clientHeight / 2 ? "bottom" : "top"]: `${(y > room.clientHeight / 2 ? room.clientHeight - y : y) + 10}px` };
  return html`<div class="tip" style=${place}>
    ${pictures && html`<img src=${addressOf(pictures[index])} alt="" />`}
    ${shortened(texts[index], 240)}
    ${columns.filter(({ few }) => few).map(({ name, values }) => html`<small>${name}: ${values[index]}</small>`)}
  </div>`;
}
