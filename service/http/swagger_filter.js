// A plugin for Swagger UI: its filter finds operations by path, summary and id, not tags alone, and unfolds what it finds.
(() => {
  const bundle = window.SwaggerUIBundle;

  const found = (operation, words) => {
    const described = operation.get("operation");
    const text = ["path", "method"].map((key) => operation.get(key))
      .concat(["summary", "operationId"].map((key) => described.get(key)))
      .join(" ")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  };

  const opsFilter = (tagged, phrase) => {
    const words = phrase.toLowerCase().split(/\s+/).filter(Boolean);
    return tagged
      .map((tag, name) => (words.every((word) => name.toLowerCase().includes(word))
        ? tag
        : tag.update("operations", (operations) => operations.filter((each) => found(each, words)))))
      .filter((tag) => tag.get("operations").size > 0);
  };

  const phraseOf = (state) => {
    const filter = state.get("filter");
    return typeof filter === "string" && filter !== "true" && filter !== "false" ? filter : "";
  };

  // while something is typed, tags stand open unless they were folded by hand
  const isShown = (original) => (state, thing, otherwise) =>
    original(state, thing, otherwise || (thing[0] === "operations-tag" && phraseOf(state) !== ""));

  const plugin = ({ React }) => ({
    fn: { opsFilter },
    statePlugins: { layout: { wrapSelectors: { isShown } } },
    components: {
      FilterContainer: ({ layoutSelectors, layoutActions, getComponent }) => {
        const Col = getComponent("Col");
        const filter = layoutSelectors.currentFilter();
        if (filter === false || filter === null || filter === "false") return null;
        return React.createElement("div", { className: "filter-container" },
          React.createElement(Col, { className: "filter wrapper", mobile: 12 },
            React.createElement("input", {
              className: "operation-filter-input",
              type: "search",
              placeholder: "Filter operations: rope png, rerank, /v1",
              "aria-label": "Filter operations",
              value: filter === true || filter === "true" ? "" : filter,
              onChange: (event) => layoutActions.updateFilter(event.target.value),
            })));
      },
    },
  });

  window.SwaggerUIBundle = Object.assign(
    (options) => bundle({ ...options, plugins: [...(options.plugins ?? []), plugin] }),
    bundle,
  );
})();
