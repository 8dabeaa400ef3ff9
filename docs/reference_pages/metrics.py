"""The page of the metrics, made from the rows of `service.observability.metric_families`."""

from reference_pages.markdown import page, plain, table
from service.observability.metric_families import FAMILIES, Family

INTRODUCTION = """\
`GET /metrics` answers in Prometheus' text format, or in OpenMetrics to those that accept it. With several workers any
of them answers for all. A histogram has the series `_bucket`, `_sum` and `_count`, a summary the last two.

`make observe` runs every query of the dashboard and the alerts in `deploy/helm/inlay/files/` against a real
Prometheus."""
MERGED = {
    "sum": "sum over the workers",
    "max": "largest of the workers",
    "min": "smallest of the workers",
    "each": "one series a worker, label `worker`",
}


def metrics_page() -> str:
    """Return the page: one row for each family of metrics."""
    rows = [
        [
            f'<span id="{family.name}"></span>`{exposed(family)}`',
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels) or "none",
            plain(family.help),
            MERGED[family.merged],
        ]
        for family in FAMILIES
    ]
    buckets = [
        [f"`{family.name}`", ", ".join(f"{bound:g}" for bound in family.bounds)] for family in FAMILIES if family.bounds
    ]
    return page(
        "Metrics",
        INTRODUCTION,
        table(["name", "type", "labels", "meaning", "of several workers"], rows),
        "## Buckets of the histograms\n\n" + table(["histogram", "upper bounds in seconds"], buckets),
        wide=True,
    )


def exposed(family: Family) -> str:
    """Return the name under which a family is scraped."""
    return f"{family.name}_total" if family.kind == "counter" else family.name
