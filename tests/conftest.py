"""How tests are collected and spread, and what several modules share because it is dear: the demo model's export."""

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import certifi
import pytest

from models.artifacts.export import export
from tests.minilm_golden import checkpoint
from tests.score_models import write_store
from tests.sweeps import thin

APART = {"faults": "faults", "proxies": "proxies", "web": "browser"}  # folders whose tests all carry one marker
END = "-----END CERTIFICATE-----\n"
WORKERS_PER_CORE = 2  # tests of real servers wait half of their time: -n 2 kept two cores busy for 0.8 of one

with suppress(ImportError):  # the clients' environment has none
    import hypothesis

    hypothesis.settings.register_profile(
        "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("busy machine")


@pytest.hookimpl(optionalhook=True)  # the clients' environment has no xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the processes of `-n auto`."""
    return WORKERS_PER_CORE * len(os.sched_getaffinity(0))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders of suites that the marker expression leaves out: their imports cost seconds a process."""
    apart = APART.get(collection_path.name) if collection_path.parent == Path(__file__).parent else None
    return True if apart and collection_path.is_dir() and f"not {apart}" in config.option.markexpr else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector what lives as long as the run: among all tests a collection took 0.25 s."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the folders APART; leave a part of the longest modules to `make test-all`."""
    for item in items:
        if marker := APART.get(item.path.relative_to(Path(__file__).parent).parts[0]):
            item.add_marker(marker)
    thin(items, config.rootpath)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--save-table", type=Path, help="write what parity or the clients showed to this Markdown file")
    parser.addoption("--save-screenshots", action="store_true", help="write what tests/web sees to docs/images/page")


@pytest.fixture(scope="session", autouse=True)
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each client reads the certificates it trusts: one takes it 16 ms less than the world's, which no test calls."""
    bundle = Path(certifi.where()).read_text(encoding="utf-8")
    first = tmp_path_factory.mktemp("authorities") / "first.pem"
    first.write_text(bundle[: bundle.index(END) + len(END)], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(certifi, "where", lambda: str(first))
        yield


@pytest.fixture(scope="session")
def minilm_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds the demo model under the name `minilm`."""
    store = tmp_path_factory.mktemp("minilm")
    export(checkpoint(), store / "minilm")
    return store


@pytest.fixture(scope="session")
def score_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a tiny cross-encoder, `ranker`, a `classifier` of three labels and an `embedder`."""
    return write_store(tmp_path_factory.mktemp("scores"))
