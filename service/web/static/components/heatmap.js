// A matrix as a heat map on a canvas, with labelled axes, a colour scale and the value under the pointer or the arrow keys.
import { color, html, useEffect, useRef, useState, useTheme, useWidth } from "../lib/dom.js";

const MARGIN = { left: 64, right: 76, top: 8, bottom: 44 };

// Args: values (rows * columns, row by row); rows, columns; title (for readers of the screen); rowLabel, columnLabel: what the axes
// count; rowNames, columnNames: texts in place of numbers; scale: [lowest, highest], else that of the values, symmetric around 0
// where some are negative; height in CSS pixels; rowAt, columnAt: {start, step} of the
// numbers of rows and columns, else 0, 1, ...; textOf: value -> text; classes: names of the values 0 and 1, in place of a scale.
export function Heatmap(options) {
  const { values, rows, columns, title, rowLabel, columnLabel, rowNames, columnNames, rowAt, columnAt, scale, classes, height = 280 } = options;
  const textOf = options.textOf ?? ((value) => value.toPrecision(4));
  const box = useRef(null);
  const canvas = useRef(null);
  const width = useWidth(box);
  const theme = useTheme();
  const [chosen, setCell] = useState(null);
  const cell = chosen && chosen[0] < rows && chosen[1] < columns ? chosen : null;
  const range = scale ?? rangeOf(values);
  const left = rowNames ? Math.min(160, Math.max(MARGIN.left, 0.3 * width), Math.max(MARGIN.left, 7 * Math.max(0, ...rowNames.map((name) => name.length)) + 24)) : MARGIN.left;
  const plot = { x: left, y: MARGIN.top, width: Math.max(1, width - left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
  useEffect(() => {
    if (!width || !rows || !columns) return;
    draw(canvas.current, { values, rows, columns, rowLabel, columnLabel, rowNames, columnNames, rowAt, columnAt, classes, range, width, height, plot });
  }, [values, rows, columns, width, height, theme, rowLabel, columnLabel, range[0], range[1], numberAt(0, rowAt), numberAt(0, columnAt), rowAt?.step, columnAt?.step]);
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
    ? `${rowNames?.[cell[0]] ?? `${rowLabel} ${numberAt(cell[0], rowAt)}`}, ${columnNames?.[cell[1]] ?? `${columnLabel} ${numberAt(cell[1], columnAt)}`}: ${textOf(values[cell[0] * columns + cell[1]])}`
    : classes
      ? `${rows} × ${columns}: ${classes.join(" or ")}`
      : `${rows} × ${columns} values, colours from ${range[0].toPrecision(3)} to ${range[1].toPrecision(3)}`;
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
export function colors([lowest, highest]) {
  const [low, zero, high] = ["--low", "--zero", "--high"].map((name) => color(name).split(",").map(Number));
  const most = Math.max(Math.abs(lowest), Math.abs(highest)) || 1;
  return (value) => {
    if (!Number.isFinite(value)) return value < 0 ? [90, 90, 90] : [160, 160, 160];
    const share = Math.max(-1, Math.min(1, value / most));
    const to = share < 0 ? low : high;
    return zero.map((part, index) => part + (to[index] - part) * Math.abs(share));
  };
}

function numberAt(index, place) {
  return place ? Math.round(place.start + index * place.step) : index;
}

function draw(canvas, { values, rows, columns, rowLabel, columnLabel, rowNames, columnNames, rowAt, columnAt, classes, range, width, height, plot }) {
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
  const painted = new Map(); // by colour step: a matrix has far fewer of them than cells
  const most = Math.max(Math.abs(range[0]), Math.abs(range[1])) || 1;
  for (let index = 0; index < rows * columns; index++) {
    const step = Math.round((255 * values[index]) / most);
    if (!painted.has(step)) painted.set(step, [...paint(values[index]), 255]);
    image.data.set(painted.get(step), 4 * index);
  }
  cells.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = rows > 2 * plot.height * ratio || columns > 2 * plot.width * ratio;
  context.drawImage(cells, plot.x, plot.y, plot.width, plot.height);
  context.strokeStyle = color("--strong-line");
  context.strokeRect(plot.x, plot.y, plot.width, plot.height);
  axes(context, { rows, columns, rowLabel, columnLabel, rowNames, columnNames, rowAt, columnAt, plot, height });
  if (classes) classKeys(context, { classes, paint, plot });
  else scaleBar(context, { range, paint, plot });
}

function axes(context, { rows, columns, rowLabel, columnLabel, rowNames, columnNames, rowAt, columnAt, plot, height }) {
  context.fillStyle = color("--ink");
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const row of placed(rows, plot.height / 22, rowNames, rowAt))
    context.fillText(shortened(rowNames?.[row] ?? numberAt(row, rowAt), Math.max(6, Math.floor((plot.x - 12) / 7))), plot.x - 6, plot.y + ((row + 0.5) / rows) * plot.height);
  context.textAlign = "center";
  context.textBaseline = "top";
  const room = columnNames ? Math.max(40, 7 * Math.max(0, ...columnNames.map((name) => name.length))) : 50;
  for (const column of placed(columns, plot.width / room, columnNames, columnAt))
    context.fillText(shortened(columnNames?.[column] ?? numberAt(column, columnAt), 16), plot.x + ((column + 0.5) / columns) * plot.width, plot.y + plot.height + 6);
  context.fillText(columnLabel, plot.x + plot.width / 2, height - 18);
  if (rowNames) return;
  context.save();
  context.translate(14, plot.y + plot.height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(rowLabel, 0, -6);
  context.restore();
}

// Rows or columns to name: round numbers, also where these do not begin at 0 or are not 1 apart.
function placed(count, most, names, place) {
  if (!place || names) return ticks(count, most, names);
  const last = place.start + (count - 1) * place.step;
  const step = Math.max(1, ticks(Math.max(1, last - place.start), most)[1] ?? 1);
  const numbers = [];
  for (let number = Math.ceil(place.start / step) * step; number <= last + 1e-9; number += step) numbers.push(number);
  return (numbers.length ? numbers : [place.start]).map((number) => (number - place.start) / place.step);
}

function classKeys(context, { classes, paint, plot }) {
  const x = plot.x + plot.width + 12;
  context.textAlign = "left";
  context.textBaseline = "middle";
  classes.forEach((name, value) => {
    const y = plot.y + 26 * value;
    context.fillStyle = `rgb(${paint(value).map(Math.round).join(",")})`;
    context.fillRect(x, y, 12, 12);
    context.strokeStyle = color("--strong-line");
    context.strokeRect(x, y, 12, 12);
    context.fillStyle = color("--ink");
    context.fillText(shortened(name, 11), x, y + 19);
  });
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
  const middle = (range[0] + range[1]) / 2;
  for (const [share, value] of [[0, range[1]], [0.5, Math.abs(middle) < 1e-9 * range[1] ? 0 : middle], [1, range[0]]]) {
    context.textBaseline = share === 0 ? "top" : share === 1 ? "bottom" : "middle";
    context.fillText(short(value), x + 17, plot.y + share * plot.height);
  }
}

function short(value) {
  if (value === 0) return "0";
  return Math.abs(value) < 0.001 || Math.abs(value) >= 10_000 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

export function shortened(text, most) {
  const whole = String(text);
  return whole.length > most ? `${whole.slice(0, most - 1).replace(/[\ud800-\udbff]$/, "")}…` : whole; // no half of an emoji
}

// At most `most` whole numbers below `count`, at round steps; with names every one that has room.
export function ticks(count, most, names) {
  const rough = count / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const step = names ? Math.max(1, Math.ceil(rough)) : Math.max(1, [1, 2, 5, 10].find((each) => each * power >= rough) * power);
  return Array.from({ length: Math.ceil(count / step) }, (_, index) => index * step);
}
