// A matrix as a heat map on a canvas, with labelled axes, a colour scale and the value under the pointer or the arrow keys.
import { color, html, useEffect, useRef, useState, useTheme, useWidth } from "../lib/dom.js";

const MARGIN = { left: 64, right: 76, top: 8, bottom: 44 };

// Args: values (rows * columns, row by row); rows, columns; title (for readers of the screen); rowLabel, columnLabel: what the axes
// count; rowNames, columnNames: texts in place of numbers; scale: [lowest, highest], else that of the values, symmetric around 0
// where some are negative; height in CSS pixels; onCanvas: gets the canvas, for downloads.
export function Heatmap({ values, rows, columns, title, rowLabel, columnLabel, rowNames, columnNames, scale, height = 280, onCanvas }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const width = useWidth(box);
  const theme = useTheme();
  const [cell, setCell] = useState(null);
  const range = scale ?? rangeOf(values);
  const left = rowNames ? Math.min(160, Math.max(MARGIN.left, 7 * Math.max(0, ...rowNames.map((name) => name.length)) + 24)) : MARGIN.left;
  const plot = { x: left, y: MARGIN.top, width: Math.max(1, width - left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
  useEffect(() => {
    if (!width || !rows || !columns) return;
    draw(canvas.current, { values, rows, columns, rowLabel, columnLabel, rowNames, columnNames, range, width, height, plot });
    onCanvas?.(canvas.current);
  }, [values, rows, columns, width, height, theme, rowLabel, columnLabel, range[0], range[1]]);
  const pointed = (event) => {
    const bounds = canvas.current.getBoundingClientRect();
    const row = Math.floor(((event.clientY - bounds.top - plot.y) / plot.height) * rows);
    const column = Math.floor(((event.clientX - bounds.left - plot.x) / plot.width) * columns);
    setCell(row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null);
  };
  const moved = (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, column] = cell ?? [0, 0];
    setCell([Math.min(rows - 1, Math.max(0, row + step[0])), Math.min(columns - 1, Math.max(0, column + step[1]))]);
  };
  const said = cell
    ? `${rowNames?.[cell[0]] ?? `${rowLabel} ${cell[0]}`}, ${columnNames?.[cell[1]] ?? `${columnLabel} ${cell[1]}`}: ${values[cell[0] * columns + cell[1]].toPrecision(4)}`
    : `${rows} × ${columns} values from ${range[0].toPrecision(3)} to ${range[1].toPrecision(3)}`;
  return html`<figure class="figure" ref=${box}>
    <canvas
      ref=${canvas}
      tabindex="0"
      role="img"
      aria-label=${`${title}: ${said}. Arrow keys read single values.`}
      style=${{ height: `${height}px` }}
      onPointerMove=${pointed}
      onPointerLeave=${() => setCell(null)}
      onKeyDown=${moved}
    ></canvas>
    <figcaption class="note readout" aria-live="polite">${said}</figcaption>
  </figure>`;
}

export function rangeOf(values) {
  let lowest = Infinity;
  let highest = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < lowest) lowest = value;
    if (value > highest) highest = value;
  }
  if (lowest > highest) return [0, 1];
  const most = Math.max(Math.abs(lowest), Math.abs(highest)) || 1;
  return lowest < 0 ? [-most, most] : [0, most];
}

// Returns value -> [red, green, blue]: from the colour below zero over that of zero to that above.
function colors([lowest, highest]) {
  const [low, zero, high] = ["--low", "--zero", "--high"].map((name) => color(name).split(",").map(Number));
  const most = Math.max(Math.abs(lowest), Math.abs(highest)) || 1;
  return (value) => {
    if (!Number.isFinite(value)) return value < 0 ? [90, 90, 90] : [160, 160, 160];
    const share = Math.max(-1, Math.min(1, value / most));
    const to = share < 0 ? low : high;
    return zero.map((part, index) => part + (to[index] - part) * Math.abs(share));
  };
}

function draw(canvas, { values, rows, columns, rowLabel, columnLabel, rowNames, columnNames, range, width, height, plot }) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = color("--paper");
  context.fillRect(0, 0, width, height);
  const cells = document.createElement("canvas");
  cells.width = columns;
  cells.height = rows;
  const image = new ImageData(columns, rows);
  const paint = colors(range);
  for (let index = 0; index < rows * columns; index++) {
    const [red, green, blue] = paint(values[index]);
    image.data.set([red, green, blue, 255], 4 * index);
  }
  cells.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = rows > 2 * plot.height * ratio || columns > 2 * plot.width * ratio;
  context.drawImage(cells, plot.x, plot.y, plot.width, plot.height);
  context.strokeStyle = color("--strong-line");
  context.strokeRect(plot.x, plot.y, plot.width, plot.height);
  axes(context, { rows, columns, rowLabel, columnLabel, rowNames, columnNames, plot, height });
  scaleBar(context, { range, paint, plot });
}

function axes(context, { rows, columns, rowLabel, columnLabel, rowNames, columnNames, plot, height }) {
  context.fillStyle = color("--ink");
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const row of ticks(rows, plot.height / 22, rowNames))
    context.fillText(shortened(rowNames?.[row] ?? row, 20), plot.x - 6, plot.y + ((row + 0.5) / rows) * plot.height);
  context.textAlign = "center";
  context.textBaseline = "top";
  const room = columnNames ? Math.max(40, 7 * Math.max(0, ...columnNames.map((name) => name.length))) : 50;
  for (const column of ticks(columns, plot.width / room, columnNames))
    context.fillText(shortened(columnNames?.[column] ?? column, 16), plot.x + ((column + 0.5) / columns) * plot.width, plot.y + plot.height + 6);
  context.fillText(columnLabel, plot.x + plot.width / 2, height - 18);
  if (rowNames) return;
  context.save();
  context.translate(14, plot.y + plot.height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(rowLabel, 0, -6);
  context.restore();
}

function scaleBar(context, { range, paint, plot }) {
  const x = plot.x + plot.width + 12;
  for (let line = 0; line < plot.height; line++) {
    const value = range[1] - ((line + 0.5) / plot.height) * (range[1] - range[0]);
    context.fillStyle = `rgb(${paint(value).map(Math.round).join(",")})`;
    context.fillRect(x, plot.y + line, 12, 1);
  }
  context.fillStyle = color("--ink");
  context.textAlign = "left";
  for (const [share, value] of [[0, range[1]], [0.5, (range[0] + range[1]) / 2], [1, range[0]]]) {
    context.textBaseline = share === 0 ? "top" : share === 1 ? "bottom" : "middle";
    context.fillText(short(value), x + 17, plot.y + share * plot.height);
  }
}

function short(value) {
  if (value === 0) return "0";
  return Math.abs(value) < 0.001 || Math.abs(value) >= 10_000 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

function shortened(text, most) {
  const whole = String(text);
  return whole.length > most ? `${whole.slice(0, most - 1)}…` : whole;
}

// At most `most` whole numbers below `count`, at round steps; with names every one that has room.
function ticks(count, most, names) {
  const rough = count / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const step = names ? Math.max(1, Math.ceil(rough)) : Math.max(1, [1, 2, 5, 10].find((each) => each * power >= rough) * power);
  return Array.from({ length: Math.ceil(count / step) }, (_, index) => index * step);
}
