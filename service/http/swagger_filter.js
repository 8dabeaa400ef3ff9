// A plugin for Swagger UI: its filter finds operations by path, method, summary and id, not tags alone, and unfolds what
// it finds. On narrow screens the descriptions of tags and parameters stand below their names.
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

  const typed = (filter) => (typeof filter === "string" && filter !== "true" && filter !== "false" ? filter : "");

  // while something is typed, tags stand open unless they were folded by hand
  const unfolded = (Tag, { React }) => (props) => {
    const { layoutSelectors } = props;
    const isShown = (thing, otherwise) =>
      layoutSelectors.isShown(thing, otherwise || typed(layoutSelectors.currentFilter()) !== "");
    return React.createElement(Tag, { ...props, layoutSelectors: { ...layoutSelectors, isShown } });
  };

  const plugin = ({ React }) => ({
    fn: { opsFilter },
    wrapComponents: { OperationTag: unfolded },
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
              value: typed(filter),
              onChange: (event) => layoutActions.updateFilter(event.target.value),
            })));
      },
    },
  });

  const style = document.createElement("style");
  style.textContent = `
    .swagger-ui .filter .operation-filter-input { max-width: none; width: 100%; }
    @media (max-width: 640px) {
      .swagger-ui .opblock-tag { flex-wrap: wrap; }
      .swagger-ui .opblock-tag small { flex-basis: 100%; order: 1; padding: 0; }
      .swagger-ui :is(.parameters, .responses-table), .swagger-ui :is(.parameters, .responses-table) :is(tbody, tr, td) {
        display: block; max-width: none; width: auto;
      }
      .swagger-ui table.parameters thead, .swagger-ui .responses-table thead { display: none; }
      .swagger-ui table:is(.parameters, .responses-table) td { padding: 4px 0; }
      .swagger-ui table.parameters :is(input, select, textarea) { box-sizing: border-box; max-width: 100%; width: 100%; }
    }`;
  document.head.append(style);

  window.SwaggerUIBundle = Object.assign(
    (options) => bundle({ ...options, plugins: [...(options.plugins ?? []), plugin] }),
    bundle,
  );
})();
