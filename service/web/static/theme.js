// Sets the theme before the first paint, and when the choice or the system's theme changes. "auto" follows the system.
(() => {
  const root = document.documentElement.dataset;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    root.theme = root.choice === "auto" ? (dark.matches ? "dark" : "light") : root.choice;
  };
  root.choice = "auto";
  try {
    root.choice = localStorage.getItem("inlay-theme") || "auto";
  } catch {
    // storage is switched off: follow the system
  }
  show();
  dark.addEventListener("change", show);
  addEventListener("themechange", show);
})();
