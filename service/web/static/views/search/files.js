// Tables of texts from a file or from what was pasted: lines, CSV or TSV, JSON lines.
import { whole } from "../../lib/link.js";

export const MOST_TEXTS = 20_000;
const MOST_BYTES = 256e6; // of a file: a browser's longest string is twice that
const MOST_CHARACTERS = 4000; // of a text: more than models read
const TEXT = /^(text|sentence|content|body|question|title|description|name)$/i;
const MOST_VALUES = 50; // of a column by which texts are sorted and coloured
const MOST_COLUMNS = 8;
const MOST_CELL = 200;
export const MOST_PICTURES = 2000;
export const PICTURE = /^image\/(png|jpeg|webp)$/; // what the server reads

// The text of a file, in UTF-8 or, with its mark, UTF-16.
export async function readText(file) {
  if (file.size > MOST_BYTES) throw new Error(`it has ${Math.round(file.size / 1e6)} MB, and up to ${MOST_BYTES / 1e6} are read: cut it into parts`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const mark = bytes[0] * 256 + bytes[1];
  const coding = { 0xfffe: "utf-16le", 0xfeff: "utf-16be" }[mark] ?? "utf-8";
  if (coding === "utf-8" && bytes.subarray(0, 65536).includes(0)) throw new Error("it is no text");
  try {
    return new TextDecoder(coding, { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`it is no text in ${coding.toUpperCase()}: save it as CSV or text in UTF-8`);
  }
}

// {columns: [name], rows: [[cell]]}: a file of another kind is read as lines.
export function tableOf(text, name) {
  const given = whole(text.replace(/^\ufeff/, ""));
  if (/\.(jsonl|ndjson)$/i.test(name)) return objectTable(given);
  if (/\.(csv|tsv)$/i.test(name)) return separatedTable(given, /\.tsv$/i.test(name) ? "\t" : separatorOf(given));
  return { columns: ["line"], rows: given.split(/\r?\n/).map((line) => [line]) };
}

// The separator that the first line has most of: spreadsheets of some countries write semicolons.
function separatorOf(text) {
  const first = text.slice(0, text.search(/[\r\n]|$/));
  return [",", ";", "\t"].sort((a, b) => first.split(b).length - first.split(a).length)[0];
}

function objectTable(text) {
  const columns = new Map();
  const rows = [];
  for (const [index, line] of text.split("\n").entries()) {
    if (!line.trim()) continue;
    const row = [];
    let value;
    try {
      value = JSON.parse(line);
    } catch {
      throw new Error(`line ${index + 1} is not JSON`);
    }
    for (const [name, cell] of Object.entries(typeof value === "object" && value ? value : { text: value })) {
      if (!columns.has(name)) columns.set(name, columns.size);
      row[columns.get(name)] = typeof cell === "string" ? cell : JSON.stringify(cell);
    }
    rows.push(row);
  }
  return { columns: [...columns.keys()], rows };
}

// RFC 4180: a quoted cell may hold separators, line breaks and doubled quotes. The first row names the columns.
function separatedTable(text, separator) {
  const rows = [[]];
  const pattern = new RegExp(`(?:"((?:[^"]|"")*)"|([^${separator}\\r\\n]*))(${separator}|\\r?\\n|$)`, "gy");
  for (let match; pattern.lastIndex < text.length && (match = pattern.exec(text)); ) {
    if (match[2]?.startsWith('"') && match[2].split('"').length % 2 === 0) throw new Error(`line ${text.slice(0, match.index).split("\n").length} opens a quote that is not closed`);
    rows.at(-1).push(match[1]?.replaceAll('""', '"') ?? match[2]);
    if (match[3] !== separator) rows.push([]);
  }
  const [columns, ...cells] = rows.filter((row) => row.some(Boolean));
  if (!columns) throw new Error("it holds no rows");
  return { columns: columns.map((name, index) => name || `column ${index + 1}`), rows: cells };
}

// The column whose name or contents look like texts: by its name, else the one with the longest cells.
export function likelyColumn({ columns, rows }) {
  const named = columns.findIndex((name) => TEXT.test(name));
  if (named >= 0) return named;
  const lengths = columns.map((_, index) => rows.slice(0, 200).reduce((sum, row) => sum + (row[index]?.length ?? 0), 0));
  return lengths.indexOf(Math.max(...lengths));
}

// What is embedded of a table: {texts, given, columns: [{name, values, few}]}, the others as columns; given: how many texts it has; few: whether a
// column's values sort the texts.
export function textsOf({ columns, rows }, column) {
  const all = rows.filter((row) => row[column]?.trim());
  const kept = all.slice(0, MOST_TEXTS);
  const others = columns.map((name, index) => ({ name, values: index === column ? [] : kept.map((row) => (row[index] ?? "").slice(0, MOST_CELL)) }));
  const few = (values) => new Set(values).size > 1 && new Set(values).size <= Math.min(MOST_VALUES, kept.length / 2);
  return {
    given: all.length,
    texts: kept.map((row) => row[column].trim().slice(0, MOST_CHARACTERS)),
    columns: others.filter((_, index) => index !== column).slice(0, MOST_COLUMNS).map(({ name, values }) => ({ name, values, few: few(values) })),
  };
}
