"""All pages of the reference that are made from the code."""

from collections.abc import Mapping

from reference_pages.chart import values_page
from reference_pages.commands import commands_page
from reference_pages.errors import errors_page
from reference_pages.families import families_page
from reference_pages.metrics import metrics_page
from reference_pages.positions import positions_page
from reference_pages.python_api import python_pages
from reference_pages.rest import document, rest_pages
from reference_pages.rpc import rpc_pages
from reference_pages.settings import settings_page

SINGLE = {
    "cli": ("Command line", commands_page),
    "settings": ("Settings", settings_page),
    "chart": ("Helm values", values_page),
    "metrics": ("Metrics", metrics_page),
    "errors": ("Errors", errors_page),
    "families": ("Model families", families_page),
    "positions": ("Positional schemes", positions_page),
}


def pages() -> Mapping[str, tuple[str, str]]:
    """Return title and Markdown of every generated page, by its path below docs/, in the order of the navigation."""
    single = {f"reference/{name}.md": (title, text()) for name, (title, text) in SINGLE.items()}
    return rest_pages(document()) | rpc_pages() | single | python_pages()
