// Buttons that save what a view shows: PNG, SVG, npy, CSV.
import { html, useState } from "../lib/dom.js";

// Args: name: of the file, without its suffix; what: what the files hold; files: {png: () => Blob | Promise<Blob>, svg: ..., npy: ..., csv: ...}.
export function Downloads({ name, what, files }) {
  const [error, setError] = useState("");
  const save = async (suffix, make) => {
    setError("");
    try {
      saveBlob(await make(), `${name}.${suffix}`);
    } catch (failure) {
      setError(`${suffix}: ${failure.message}`);
    }
  };
  return html`<div class="row downloads" role="group" aria-label=${`Download ${name}`}>
    <span class="note">Download${what ? ` ${what}` : ""}</span>
    ${Object.entries(files).map(
      ([suffix, make]) => html`<button type="button" class="quiet" onClick=${() => save(suffix, make)}>${suffix.toUpperCase()}</button>`,
    )}
    ${error && html`<span class="error" role="alert">${error}</span>`}
  </div>`;
}

export function saveBlob(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Rows of cells as CSV (RFC 4180).
export function csvBlob(rows) {
  const cell = (value) => (/[",\r\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  return new Blob([rows.map((row) => Array.from(row, cell).join(",")).join("\r\n"), "\r\n"], { type: "text/csv" });
}

const ARRAYS = { "<f4": Float32Array, "|i1": Int8Array, "|u1": Uint8Array };

// Values as a .npy file, version 1.0, C order; type: a key of ARRAYS.
export function npyBlob(values, shape, type = "<f4") {
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  const text = `{'descr': '${type}', 'fortran_order': False, 'shape': ${tuple}, }`;
  const padded = text.padEnd(Math.ceil((10 + text.length + 1) / 64) * 64 - 11, " ") + "\n";
  const head = new Uint8Array(10 + padded.length);
  head.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, padded.length & 255, padded.length >> 8]);
  head.set(new TextEncoder().encode(padded), 10);
  return new Blob([head, ARRAYS[type].from(values)], { type: "application/octet-stream" });
}
