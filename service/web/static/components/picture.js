// Pictures for downloads: a matrix or bars as SVG, and an SVG as PNG. They have the colours of the theme that is shown.
import { color } from "../lib/dom.js";
import { colors, rangeOf, shortened, ticks } from "./heatmap.js";

const FONT = 12;
const CELLS = 1024; // more cells than this are drawn as pixels, not as shapes
const PIXELS = 2; // of a PNG, for each of the SVG's

export const escaped = (text) =>
  String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

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

// groups: [{name, bars: [{label, value}]}]
export function barsSvg({ groups, title, width = 480, digits = 4 }) {
  const most = Math.max(...groups.flatMap((group) => group.bars.map((bar) => Math.abs(bar.value))), 1e-30);
  const parts = [label(title, 12, 16, "start", 'font-weight="600"')];
  let y = 40;
  for (const { name, bars } of groups) {
    if (name) parts.push(label(shortened(name, 90), 12, y, "start", 'font-weight="600"'));
    if (name) y += 22;
    for (const bar of bars) {
      parts.push(label(shortened(bar.label, 32), 212, y, "end"));
      parts.push(`<rect x="220" y="${y - 7}" width="${(Math.abs(bar.value) / most) * width}" height="14" fill="${color("--series-1")}"/>`);
      parts.push(label(bar.value.toFixed(digits), 226 + (Math.abs(bar.value) / most) * width, y));
      y += 20;
    }
    y += 10;
  }
  return svg(width + 310, y, title, parts);
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
