"""The page of the Helm chart's values, which is the chart's own file of them."""

from pathlib import Path

from reference_pages.markdown import page

VALUES = Path(__file__).parents[2] / "deploy/helm/inlay/values.yaml"
INTRODUCTION = """\
Every value of `deploy/helm/inlay` with its default. What a values file does not name stays as it is here; a name that
is not here is refused. The pages on the [Helm chart](../deploy/helm/index.md) say what to do with them."""


def values_page() -> str:
    """Return the page: the file values.yaml with its comments."""
    return page("Helm values", INTRODUCTION, f"```yaml\n{VALUES.read_text(encoding='utf-8')}```", wide=True)
