"""Single modules of the installed vLLM wheel, run without its package and the gigabytes that the package imports."""

import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

PACKAGES = ("vllm", "vllm.renderers", "vllm.utils")


def load(name: str) -> ModuleType:
    """The module `name` of vLLM as its wheel has it; only the `__init__.py` of its packages are left out."""
    spec = importlib.util.find_spec("vllm") if "vllm" not in sys.modules else sys.modules["vllm"].__spec__
    assert spec is not None, "vLLM is not installed"
    assert spec.submodule_search_locations is not None
    [root] = spec.submodule_search_locations
    for package in PACKAGES:
        if package not in sys.modules:
            empty = importlib.machinery.ModuleSpec(package, None, is_package=True)
            folder = "/".join([root, *package.split(".")[1:]])
            empty.submodule_search_locations = [folder]
            sys.modules[package] = importlib.util.module_from_spec(empty)
    return importlib.import_module(name)
