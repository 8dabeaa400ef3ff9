"""The reference pages of the documentation site, made from the code.

Needs no mkdocs: `pages()` in `site.py` returns Markdown by path. `docs/hooks.py` hands it to mkdocs.
"""
