// Pictures for downloads: a matrix or bars as SVG, and an SVG as PNG. They have the colours of the theme that is shown.
import { color } from "../lib/dom.js";
import { whole } from "../lib/link.js";
import { shareOf } from "./bars.js";
import { DASHES } from "./chart.js";
import { colors, rangeOf, shortened, ticks } from "./heatmap.js";

const FONT = 12;
const CELLS = 1024; // more cells than this are drawn as pixels, not as shapes
const PIXELS = 2; // of a PNG, for each of the SVG's

// Text of an XML document; characters that XML has not, such as U+0008, become U+FFFD.
export const escaped = (text) =>
  whole(String(text)).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

// Black or white, whichever is easier to read on a colour.
export function inkOn(rgb) {
  const [red, green, blue] = rgb.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

export const rgb = (parts) => `rgb(${parts.map(Math.round).join(",")})`;

function svg(width, height, title, parts) {
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="${FONT}" fill="${color("--ink")}"><title>${escaped(title)}</title><rect width="100%" height="100%" fill="${color("--paper")}"/>${parts.join("")}</svg>`;
}

function label(text, x, y, anchor = "start", extra = "") {
  return `<text x="${x}" y="${y}" text-anchor="${anchor}" dominant-baseline="central" ${extra}>${escaped(text)}</text>`;
}

// Args as of <Heatmap>; digits: the values written into the cells, with so many behind the point; width, height: of the cells.
export function matrixSvg({ values, rows, columns, title, rowLabel, columnLabel, rowNames, columnNames, scale, digits, width = 800, height = 400 }) {
  const paint = colors(scale ?? rangeOf(values));
  const left = rowNames ? 220 : 60;
  const [top, bottom, right] = [34, 46, 20];
  const [w, h] = [width / columns, height / rows];
  const parts = [label(title, left, 16, "start", 'font-weight="600"')];
  if (rows * columns > CELLS) parts.push(pixelCells(values, rows, columns, paint, { left, top, width, height }));
  else
    for (let index = 0; index < rows * columns; index++) {
      const [row, column] = [Math.floor(index / columns), index % columns];
      const [x, y] = [left + column * w, top + row * h];
      const fill = paint(values[index]);
      parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" fill="${rgb(fill)}"/>`);
      if (digits !== undefined) parts.push(label(values[index].toFixed(digits), x + w / 2, y + h / 2, "middle", `fill="${inkOn(fill)}"`));
    }
  for (const row of ticks(rows, height / 20, rowNames)) parts.push(label(shortened(rowNames?.[row] ?? row, 32), left - 8, top + (row + 0.5) * h, "end"));
  for (const column of ticks(columns, width / 50, columnNames))
    parts.push(label(shortened(columnNames?.[column] ?? column, 14), left + (column + 0.5) * w, top + height + 14, "middle"));
  parts.push(label(columnLabel, left + width / 2, top + height + 34, "middle"));
  if (!rowNames) parts.push(label(rowLabel, 16, top + height / 2, "middle", `transform="rotate(-90 16 ${top + height / 2})"`));
  return svg(left + width + right, top + height + bottom, title, parts);
}

function pixelCells(values, rows, columns, paint, { left, top, width, height }) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let index = 0; index < rows * columns; index++) image.data.set([...paint(values[index]), 255], 4 * index);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return `<image x="${left}" y="${top}" width="${width}" height="${height}" preserveAspectRatio="none" image-rendering="pixelated" href="${canvas.toDataURL("image/png")}"/>`;
}

// groups: [{name, bars: [{label, value}]}]; most: the value of a whole bar, as of <Bars>.
export function barsSvg({ groups, title, most, width = 480, digits = 4 }) {
  const parts = [label(title, 12, 16, "start", 'font-weight="600"')];
  let y = 40;
  for (const { name, bars } of groups) {
    if (name) parts.push(label(shortened(name, 90), 12, y, "start", 'font-weight="600"'));
    if (name) y += 22;
    for (const bar of bars) {
      parts.push(label(shortened(bar.label, 32), 212, y, "end"));
      parts.push(`<rect x="220" y="${y - 7}" width="${shareOf(bar.value, most) * width}" height="14" fill="${color("--series-1")}"/>`);
      parts.push(label(bar.value.toFixed(digits), 226 + shareOf(bar.value, most) * width, y));
      y += 20;
    }
    y += 10;
  }
  return svg(width + 310, y, title, parts);
}

// Curves over a common axis. Args: x; curves: [{name, values}], null where there is none; title, xLabel, yLabel; xText, yText: value ->
// text of a tick; yLog; fromZero; xRange: [first, last], else those of x.
export function curvesSvg({ x, xRange, curves, title, xLabel, yLabel, xText = String, yText = String, yLog = false, fromZero = false, width = 800, height = 320 }) {
  const [left, top] = [76, 34];
  const along = (value) => (yLog ? Math.log10(value) : value);
  const known = curves.flatMap((curve) => Array.from(curve.values).filter((value) => Number.isFinite(value) && (!yLog || value > 0))).map(along);
  const [lowest, highest] = bounds(fromZero ? [0, ...known] : known);
  const [first, last] = bounds(xRange ?? x);
  const place = (value) => left + ((value - first) / (last - first)) * width;
  const level = (value) => top + height - ((value - lowest) / (highest - lowest)) * height;
  const parts = [label(title, left, 16, "start", 'font-weight="600"'), `<rect x="${left}" y="${top}" width="${width}" height="${height}" fill="none" stroke="${color("--strong-line")}"/>`];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const value = lowest + share * (highest - lowest);
    parts.push(`<path d="M${left} ${level(value)}h${width}" stroke="${color("--line")}"/>`);
    parts.push(label(yText(yLog ? 10 ** value : value), left - 6, level(value), "end"));
    parts.push(label(xText(first + share * (last - first)), left + share * width, top + height + 14, "middle"));
  }
  for (const [index, curve] of curves.entries()) {
    const tone = color(`--series-${(index % 6) + 1}`);
    const dash = DASHES[index % DASHES.length].join(" ");
    for (const run of runs(x, curve.values, (value) => Number.isFinite(value) && (!yLog || value > 0)))
      parts.push(`<polyline fill="none" stroke="${tone}" stroke-width="2" stroke-dasharray="${dash}" points="${run.map(([at, value]) => `${place(at)},${level(along(value))}`).join(" ")}"/>`);
    const [keyX, keyY] = [left + (index % 3) * (width / 3), top + height + 62 + 20 * Math.floor(index / 3)];
    parts.push(`<path d="M${keyX} ${keyY}h28" stroke="${tone}" stroke-width="2" stroke-dasharray="${dash}"/>`, label(shortened(curve.name, 34), keyX + 34, keyY));
  }
  parts.push(label(xLabel, left + width / 2, top + height + 36, "middle"));
  parts.push(label(yLabel, 14, top + height / 2, "middle", `transform="rotate(-90 14 ${top + height / 2})"`));
  return svg(left + width + 24, top + height + 72 + 20 * Math.ceil(curves.length / 3), title, parts);
}

function bounds(values) {
  const [lowest, highest] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
  if (lowest > highest) return [0, 1];
  return lowest === highest ? [lowest, lowest + (Math.abs(lowest) || 1)] : [lowest, highest];
}

// The stretches of a curve between gaps, as [[x, y], ...].
function runs(x, values, isKnown) {
  const stretches = [[]];
  for (const [index, value] of Array.from(values).entries()) {
    if (isKnown(value)) stretches.at(-1).push([x[index], value]);
    else if (stretches.at(-1).length) stretches.push([]);
  }
  return stretches.filter((stretch) => stretch.length);
}

export function svgBlob(text) {
  return new Blob([text], { type: "image/svg+xml" });
}

export async function pngOfSvg(text) {
  const address = URL.createObjectURL(svgBlob(text));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth * PIXELS;
    canvas.height = image.naturalHeight * PIXELS;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve, reject) =>
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the browser could not draw it"))), "image/png"),
    );
  } finally {
    URL.revokeObjectURL(address);
  }
}

// The files of <Downloads> that are pictures: make() gives the SVG.
export function pictureFiles(make) {
  return { png: () => pngOfSvg(make()), svg: () => svgBlob(make()) };
}
