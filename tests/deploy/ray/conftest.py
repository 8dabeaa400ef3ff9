"""The models and the running service of tests/service."""

from tests.service.conftest import served, tiny_store

__all__ = ["served", "tiny_store"]
