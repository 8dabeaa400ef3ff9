// Rows of numbers as strips of colour, each with its name above or beside it; the value under the pointer or the arrow keys is read out.
import { html, useEffect, useRef, useState, useTheme } from "../lib/dom.js";
import { colors, rangeOf } from "./heatmap.js";

// One row, a pixel a value, stretched by the style sheet.
function Strip({ values, paint, width, chosen }) {
  const canvas = useRef(null);
  useEffect(() => {
    const image = new ImageData(values.length, 1);
    values.forEach((value, index) => image.data.set(Number.isNaN(value) ? [0, 0, 0, 0] : [...paint(value), 255], 4 * index));
    canvas.current.width = values.length;
    canvas.current.getContext("2d").putImageData(image, 0, 0);
  }, [values, paint]);
  const mark = chosen === null ? null : html`<i class="strip-mark" style=${{ left: `${(100 * (chosen + 0.5)) / values.length}%` }}></i>`;
  return html`<span class="strip" style=${width ? { width } : {}}><canvas ref=${canvas} height="1"></canvas>${mark}</span>`;
}

// Args: rows: arrays of numbers, all of one length; NaN is left blank; names: a text a row; title: what it is; nameOf: number of a
// column -> its name; scale: as of <Heatmap>; beside: names stand beside the strips, which are `cell` CSS pixels wide for each value, and
// both scroll; textOf: value -> text; strong: numbers of the rows that begin a group.
export function Strips({ rows, names, title, nameOf, scale, beside = false, cell = 14, textOf = (value) => value.toPrecision(4), strong = [] }) {
  useTheme();
  const [cellOf, setCell] = useState(null);
  const columns = rows[0]?.length ?? 0;
  const chosen = cellOf && cellOf[0] < rows.length && cellOf[1] < columns ? cellOf : null;
  const range = scale ?? rangeOf(rows.flat());
  const theme = document.documentElement.dataset.theme;
  const paint = usePaint(range, theme);
  const pointed = (event) => {
    const strip = event.target.closest(".strip");
    if (!strip) return;
    const bounds = strip.getBoundingClientRect();
    const column = Math.floor(((event.clientX - bounds.left) / bounds.width) * columns);
    setCell([Number(strip.parentElement.dataset.row), Math.min(columns - 1, Math.max(0, column))]);
  };
  const moved = (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, column] = chosen ?? [0, 0];
    setCell([Math.min(rows.length - 1, Math.max(0, row + step[0])), Math.min(columns - 1, Math.max(0, column + step[1]))]);
  };
  const said = chosen
    ? `${names[chosen[0]]}, ${nameOf(chosen[1])}: ${Number.isNaN(rows[chosen[0]][chosen[1]]) ? "itself" : textOf(rows[chosen[0]][chosen[1]])}`
    : `${rows.length} × ${columns} values, colours from ${range[0].toPrecision(3)} to ${range[1].toPrecision(3)}`;
  return html`<figure class=${beside ? "strips beside" : "strips"}>
    <div class="scroll strip-rows" tabindex="0" role="group" aria-label=${`${title}: ${said}. Arrow keys read single values.`} onKeyDown=${moved} onPointerMove=${pointed} onPointerLeave=${() => setCell(null)}>
      ${rows.map((values, row) => html`<div class=${strong.includes(row) ? "strip-row strong" : "strip-row"} key=${row} data-row=${row}>
        <span class="strip-name" title=${names[row]}>${names[row]}</span>
        <${Strip} values=${values} paint=${paint} width=${beside ? `${cell * columns}px` : ""} chosen=${chosen && (chosen[0] === row || beside) ? chosen[1] : null} />
      </div>`)}
    </div>
    <figcaption class="note readout" aria-live="polite">${said}</figcaption>
  </figure>`;
}

// The colours of a range, the same function until it or the theme changes.
function usePaint(range, theme) {
  const kept = useRef({});
  const key = `${range} ${theme}`;
  if (kept.current.key !== key) kept.current = { key, paint: colors(range) };
  return kept.current.paint;
}
