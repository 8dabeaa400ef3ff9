// The map of a collection: its vectors on the plane in which they differ most, coloured by groups, the query among them.
import { html, useEffect, useMemo, useRef, useState, useTheme, useWidth } from "../../lib/dom.js";

const COLORS = 6; // series of the style sheet; groups beyond them are squares
const HEIGHT = 440;
const MARGIN = 24;

// What the worker makes of the vectors: {points, mean, axes, member, labels}, null until it has.
export function usePlane(collection, groups) {
  const [plane, setPlane] = useState(null);
  const whole = collection.done === collection.texts.length && collection.done > 1;
  useEffect(() => {
    setPlane(null);
    if (!whole) return undefined;
    const worker = new Worker(new URL("map_worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => setPlane(data);
    const { vectors, width, texts } = collection;
    worker.postMessage({ vectors, width, texts, groups });
    return () => worker.terminate();
  }, [whole, collection.vectors, groups]);
  return plane;
}

// How the plane lies on the canvas: {scale, left, top} so that x * scale + left is a CSS pixel.
function fitted(points, width) {
  const bounds = [0, 1].map((axis) => {
    let [least, most] = [Infinity, -Infinity];
    for (let at = axis; at < points.length; at += 2) [least, most] = [Math.min(least, points[at]), Math.max(most, points[at])];
    return [least, most];
  });
  const rooms = [width - 2 * MARGIN, HEIGHT - 2 * MARGIN];
  const scale = Math.min(...bounds.map(([least, most], axis) => rooms[axis] / (most - least || 1)));
  const [left, top] = bounds.map(([least, most], axis) => MARGIN + rooms[axis] / 2 - (scale * (least + most)) / 2);
  return { scale, left, top };
}

function projected({ mean, axes }, vector) {
  return axes.map((axis) => axis.reduce((sum, value, column) => sum + value * (vector[column] - mean[column]), 0));
}

function draw(canvas, width, { plane, place, star, hits, over }) {
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = HEIGHT * ratio;
  const context = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const tone = (name) => style.getPropertyValue(name);
  const at = (index) => [plane.points[2 * index] * place.scale + place.left, plane.points[2 * index + 1] * place.scale + place.top];
  context.scale(ratio, ratio);
  const colors = Array.from({ length: COLORS }, (_, index) => tone(`--series-${index + 1}`));
  const size = plane.member.length > 3000 ? 2 : 3.5;
  context.globalAlpha = hits.length ? 0.55 : 0.9;
  for (let index = 0; index < plane.member.length; index++) {
    const [x, y] = at(index);
    context.fillStyle = colors[plane.member[index] % COLORS];
    dot(context, x, y, size, plane.member[index] >= COLORS);
  }
  context.globalAlpha = 1;
  context.strokeStyle = tone("--ink");
  for (const index of [...hits, ...(over === null ? [] : [over])]) {
    const [x, y] = at(index);
    context.lineWidth = index === over ? 3 : 1.5;
    context.beginPath();
    context.arc(x, y, size + 3, 0, 7);
    context.stroke();
  }
  if (!star) return;
  const [x, y] = [star[0] * place.scale + place.left, star[1] * place.scale + place.top];
  context.lineWidth = 1;
  context.globalAlpha = 0.6;
  for (const index of hits) {
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(...at(index));
    context.stroke();
  }
  context.globalAlpha = 1;
  context.beginPath();
  for (let corner = 0; corner < 10; corner++) {
    const [reach, angle] = [corner % 2 ? 5 : 12, (Math.PI * corner) / 5 - Math.PI / 2];
    context.lineTo(x + reach * Math.cos(angle), y + reach * Math.sin(angle));
  }
  context.closePath();
  context.fillStyle = tone("--ink");
  context.strokeStyle = tone("--panel");
  context.lineWidth = 2;
  context.stroke();
  context.fill();
}

function dot(context, x, y, size, square) {
  if (square) return context.fillRect(x - size, y - size, 2 * size, 2 * size);
  context.beginPath();
  context.arc(x, y, size, 0, 7);
  context.fill();
}

// Zooming and moving: {scale, left, top} relative to the fitted place.
const HOME = { zoom: 1, x: 0, y: 0 };
const KEYS = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };

// Args: query: its vector, null if there is none; hits: numbers of texts; onChoose: called with the text that was pressed.
export function TextMap({ collection, plane, query, hits, groups, setGroups, onChoose }) {
  const room = useRef(null);
  const canvas = useRef(null);
  const dragged = useRef(null);
  const width = useWidth(room);
  const theme = useTheme();
  const [eye, setEye] = useState(HOME);
  const [over, setOver] = useState(null);
  const star = useMemo(() => plane && query && projected(plane, query), [plane, query]);
  const home = useMemo(() => plane && width && fitted(plane.points, width), [plane, width]);
  const place = home && { scale: home.scale * eye.zoom, left: (home.left - width / 2) * eye.zoom + width / 2 + eye.x, top: (home.top - HEIGHT / 2) * eye.zoom + HEIGHT / 2 + eye.y };
  useEffect(() => {
    setEye(HOME);
    setOver(null);
  }, [plane]);
  useEffect(() => {
    if (!place) return undefined;
    const frame = requestAnimationFrame(() => draw(canvas.current, width, { plane, place, star, hits, over }));
    return () => cancelAnimationFrame(frame);
  }, [plane, width, theme, eye, star, hits, over]);
  const zoom = (factor) => setEye(({ zoom: before, x, y }) => {
    const next = Math.min(64, Math.max(1, before * factor));
    return next === 1 ? HOME : { zoom: next, x: (x * next) / before, y: (y * next) / before };
  });
  const find = ({ offsetX, offsetY }) => {
    let [best, least] = [null, 14 ** 2];
    for (let index = 0; index < plane.member.length; index++) {
      const distance = (plane.points[2 * index] * place.scale + place.left - offsetX) ** 2 + (plane.points[2 * index + 1] * place.scale + place.top - offsetY) ** 2;
      if (distance < least) [best, least] = [index, distance];
    }
    return best;
  };
  const move = (event) => {
    if (!place) return;
    if (dragged.current === null) return setOver(find(event));
    const [dx, dy] = [event.clientX - dragged.current.x, event.clientY - dragged.current.y];
    dragged.current = { x: event.clientX, y: event.clientY, far: dragged.current.far + Math.abs(dx) + Math.abs(dy) };
    setEye((before) => ({ ...before, x: before.x + dx, y: before.y + dy }));
  };
  const release = (event) => {
    const still = place && dragged.current && dragged.current.far < 5;
    dragged.current = null;
    const chosen = still ? find(event) : null;
    if (chosen !== null) onChoose(collection.texts[chosen]);
  };
  const press = (event) => {
    const step = KEYS[event.key];
    if (step) setEye((before) => ({ ...before, x: before.x + step[0], y: before.y + step[1] }));
    else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.4 : 1 / 1.4);
    else return;
    event.preventDefault();
  };
  return html`<section class="panel map" aria-labelledby="map-title">
    <div class="row between">
      <h2 id="map-title">Map</h2>
      <div class="row">
        <label>Groups ${" "}<input type="number" min="2" max="12" value=${groups} onChange=${(event) => setGroups(event.target.valueAsNumber)} /></label>
        <button type="button" class="quiet" aria-label="Zoom in" onClick=${() => zoom(1.4)}>+</button>
        <button type="button" class="quiet" aria-label="Zoom out" onClick=${() => zoom(1 / 1.4)}>−</button>
        <button type="button" class="quiet" onClick=${() => setEye(HOME)}>Whole map</button>
      </div>
    </div>
    <div class="figure" ref=${room}>
      <canvas
        ref=${canvas}
        tabindex="0"
        role="img"
        aria-label=${`Map of ${collection.done} texts${hits.length ? `, ${hits.length} hits marked` : ""}: arrows move it, plus and minus zoom`}
        data-drawn=${plane ? plane.member.length : 0}
        style=${{ height: `${HEIGHT}px` }}
        onPointerMove=${move}
        onPointerLeave=${() => setOver(null)}
        onPointerDown=${(event) => {
          dragged.current = { x: event.clientX, y: event.clientY, far: 0 };
          canvas.current.setPointerCapture(event.pointerId);
        }}
        onPointerUp=${release}
        onKeyDown=${press}
        onWheel=${(event) => {
          if (document.activeElement !== canvas.current) return; // until it is chosen, the wheel scrolls the page
          event.preventDefault();
          zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15);
        }}
      ></canvas>
    </div>
    <p class="note readout map-readout">${over !== null ? collection.texts[over] : plane ? "Point at a text to read it, press it to search for its like; drag to move. The star is the query." : "The map is drawn once all texts are embedded…"}</p>
    <ul class="legend" aria-label="Groups, by the words that set them apart">
      ${plane?.labels.map(({ words, size }, index) => size > 0 && html`<li><span class=${index >= COLORS ? "mark square" : "mark"} style=${{ background: `var(--series-${(index % COLORS) + 1})` }}></span>${words.join(", ")} <small>${size}</small></li>`)}
    </ul>
  </section>`;
}
