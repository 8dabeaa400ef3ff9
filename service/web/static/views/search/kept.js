// IndexedDB, with one collection at most; where the browser has none, the collection lasts as long as the page.
const DATABASE = "inlay-search";

function inStore(mode, use) {
  return new Promise((resolve) => {
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("collections");
    opening.onerror = () => resolve(null);
    opening.onsuccess = () => {
      const request = use(opening.result.transaction("collections", mode).objectStore("collections"));
      request.onsuccess = () => resolve(request.result ?? null);
      request.onerror = () => resolve(null);
      request.transaction.oncomplete = () => opening.result.close();
    };
  }).catch(() => null); // where pages may keep nothing, opening throws
}

export const read = () => inStore("readonly", (rows) => rows.get("last"));
export const write = (collection) => inStore("readwrite", (rows) => rows.put(collection, "last"));
export const wipe = () => inStore("readwrite", (rows) => rows.clear());
