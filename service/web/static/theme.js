// Sets the chosen theme before the first paint. "auto" follows the system.
(() => {
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("inlay-theme") || "auto";
  } catch {
    // storage is switched off: follow the system
  }
  if (chosen !== "auto") document.documentElement.dataset.theme = chosen;
})();
