"""`inlay serve --model`: what is exported, what is served again as it is, and what is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.artifacts import card as cards
from models.artifacts.export import export
from service.cli import checkpoints
from service.errors import StartError
from service.registry.store import exports
from service.settings import Settings
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.hub_server import COMMIT, Hub
from tests.hub_server import serving as hub_serving
from tests.service.cli.conftest import Run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "tiny-bert", pooling="mean")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def exported(store: Path, *named: Path | str, **settings: object) -> Settings:
    return checkpoints.exported(Settings(store=store, **settings), list(map(str, named)))  # type: ignore[arg-type]


def test_a_checkpoint_is_exported_under_its_own_name(checkpoint: Path, store: Path) -> None:
    assert exported(store, checkpoint).models == ("tiny-bert",)
    assert cards.read(store / "tiny-bert").name == "tiny-bert"


def test_only_the_models_named_are_served(checkpoint: Path, store: Path) -> None:
    export(checkpoint, store / "other")
    assert exported(store, checkpoint).models == ("tiny-bert",)
    assert exported(store, checkpoint, models="other").models == ("tiny-bert", "other")  # the first is the default


def test_a_second_start_reuses_the_export(checkpoint: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported(store, checkpoint)
    first = (store / "tiny-bert/card.json").stat().st_mtime_ns
    capsys.readouterr()
    assert exported(store, checkpoint).models == ("tiny-bert",)
    assert (store / "tiny-bert/card.json").stat().st_mtime_ns == first
    assert capsys.readouterr().out == f"inlay: {store / 'tiny-bert'} is up to date with {checkpoint}\n"


def test_a_changed_checkpoint_is_exported_again(
    checkpoint: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(store, checkpoint)
    capsys.readouterr()
    shutil.rmtree(checkpoint)
    write_tiny_bert(checkpoint, pooling="cls")
    exported(store, checkpoint)
    assert "it has changed since it was exported" in capsys.readouterr().out
    pooling = cards.read(store / "tiny-bert").pooling
    assert pooling
    assert pooling.mode == "cls"


def test_an_export_outlives_its_checkpoint(checkpoint: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported(store, checkpoint)
    shutil.rmtree(checkpoint)
    assert exported(store, checkpoint).models == ("tiny-bert",)
    assert "is gone; its export" in capsys.readouterr().out


def test_an_unreadable_export_is_written_again(checkpoint: Path, store: Path) -> None:
    exported(store, checkpoint)
    (store / "tiny-bert/card.json").write_text("{")
    exported(store, checkpoint)
    assert cards.read(store / "tiny-bert").name == "tiny-bert"


def test_an_export_made_by_hand_is_served_as_it_is(
    checkpoint: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(checkpoint, store / "tiny-bert", dtype="float16")
    exported(store, checkpoint)
    assert cards.read(store / "tiny-bert").dtype == "float16"
    assert "is served as it is" in capsys.readouterr().out


def test_rejects_another_checkpoint_of_the_same_name(checkpoint: Path, store: Path, tmp_path: Path) -> None:
    exported(store, checkpoint)
    other = write_tiny_bert(tmp_path / "elsewhere/tiny-bert", pooling="mean")
    with pytest.raises(StartError, match=f"holds a model of {checkpoint}; remove it, or export under another name"):
        exported(store, other)
    with pytest.raises(StartError, match="would both be called tiny-bert"):
        exported(store, checkpoint, other)


def test_an_exported_model_of_the_store_is_served_by_its_name(checkpoint: Path, store: Path) -> None:
    export(checkpoint, store / "mine")
    assert exported(store, store / "mine").models == ("mine",)


def test_an_exported_model_of_another_folder_is_linked(checkpoint: Path, store: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "other/mine")
    assert exported(store, tmp_path / "other/mine").models == ("mine",)
    assert (store / "mine").resolve() == tmp_path / "other/mine"


def test_a_name_of_the_store_is_served_as_it_is(checkpoint: Path, store: Path) -> None:
    export(checkpoint, store / "mine")
    assert exported(store, "mine").models == ("mine",)


def test_a_hub_id_is_served_by_the_model_that_has_it(
    checkpoint: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(checkpoint, store / "tiny", aliases=["org/tiny", "org/other"])
    export(checkpoint, store / "other")
    for hub_id in ("org/tiny", "org/other"):
        assert exported(store, hub_id).models == ("tiny",)
        assert f"{store / 'tiny'} is served, which is {hub_id}" in capsys.readouterr().out


def test_a_model_name_with_a_slash_is_an_alias(checkpoint: Path, store: Path) -> None:
    settings = named(store, "org/mine", checkpoint)
    assert (settings.models, settings.model_of_alias) == (("mine",), {"org/mine": "mine"})


@pytest.mark.parametrize("name", ["nowhere", "no/where/at/all", "missing.gguf"])
def test_failed_export_is_one_line(name: str, inlay: Run, store: Path, tmp_path: Path) -> None:
    code, _, error = inlay("serve", "--store", store, "--model", tmp_path / name)
    assert code == 1
    assert error.count("\n") == 1
    assert f"--model {tmp_path / name} cannot be exported: " in error
    assert not list(store.glob("*")) if store.exists() else True


def test_an_unknown_model_that_holds_onnx_names_adopt(store: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(case("input_bert"), tmp_path / "strange")
    (folder / "config.json").write_text('{"model_type": "t6000"}')
    (folder / "model.onnx").touch()
    with pytest.raises(StartError, match=f"it holds ONNX: `inlay adopt {folder} {store / 'strange'}`"):
        exported(store, folder)


# ---- the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that holds org/name, in place of huggingface.co; no folder of that name is here."""
    monkeypatch.chdir(tmp_path)
    with hub_serving(write_checkpoint(case("input_bert"), tmp_path / "x")) as hub:
        template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
        yield hub


def test_a_hub_model_is_exported_once(hub: Hub, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported(store, "org/name").models == ("name",)
    assert cards.read(store / "name").source == f"org/name@{COMMIT}"
    capsys.readouterr()
    exported(store, "org/name")
    assert capsys.readouterr().out == f"inlay: the export of org/name@{COMMIT} is up to date\n"


def test_a_hub_export_of_another_name_is_served(hub: Hub, store: Path) -> None:
    export("org/name", store / "ours")
    assert exported(store, "org/name").models == ("ours",)
    assert exported(store, f"org/name@{COMMIT}").models == ("ours",)


def test_a_new_commit_is_exported_again(
    hub: Hub, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(store, "org/name")
    capsys.readouterr()
    monkeypatch.setattr("tests.hub_server.COMMIT", "f" * 40)
    hub.revisions = ("main", "f" * 40)
    exported(store, "org/name")
    assert f"the store has {COMMIT[:12]}, the hub ffffffffffff" in capsys.readouterr().out
    assert cards.read(store / "name").source == f"org/name@{'f' * 40}"


def test_a_hub_that_does_not_answer_leaves_the_export(
    hub: Hub, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(store, "org/name")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    capsys.readouterr()
    hub.revisions = ()
    assert exported(store, "org/name").models == ("name",)
    assert "whether org/name has changed is not known, its export is served" in capsys.readouterr().out


def test_exported_commit_is_not_looked_up_again(hub: Hub, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported(store, f"org/name@{COMMIT}")
    monkeypatch.setattr("models.checkpoints.hub.Repository.has", None)  # fails where it is called
    assert exported(store, f"org/name@{COMMIT}").models == ("name",)


def named(store: Path, name: str, *checkpoints_: Path) -> Settings:
    return checkpoints.exported(Settings(store=store), list(map(str, checkpoints_)), name)


def test_a_checkpoint_is_served_under_another_name(checkpoint: Path, store: Path) -> None:
    assert named(store, "mine", checkpoint).models == ("mine",)
    assert cards.read(store / "mine").name == "mine"


def test_an_export_elsewhere_is_served_under_a_name(checkpoint: Path, store: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "mnt/models")
    for _ in range(2):  # the second start finds the link
        assert named(store, "mine", tmp_path / "mnt/models").models == ("mine",)
        assert exports(store) == {"mine": store / "mine"}
        assert (store / "mine").resolve() == tmp_path / "mnt/models"


def test_a_name_does_not_replace_another_model(checkpoint: Path, store: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "mnt/models")
    export(checkpoint, store / "mine")
    with pytest.raises(StartError, match="another model is there; choose another store with INLAY_STORE or --store"):
        named(store, "mine", tmp_path / "mnt/models")


@pytest.mark.parametrize(("name", "count"), [("mine", 0), ("mine", 2), ("", 1), (".mine", 1), ("a/.b", 1)])
def test_a_name_is_of_one_model_and_one_folder(tmp_path: Path, store: Path, name: str, count: int) -> None:
    with pytest.raises(StartError, match=r"names one model, and \d are given|names no model"):
        named(store, name, *(tmp_path / f"{number}" for number in range(count)))


# ---- the command


@pytest.mark.parametrize("words", [("mine",), ("--model", "mine"), ("store/mine",), ("mine", "--model", "mine")])
def test_serve_takes_models_by_place_and_by_option(
    words: tuple[str, ...], checkpoint: Path, store: Path, inlay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(checkpoint, store / "mine")
    monkeypatch.chdir(store.parent)
    listened: list[Settings] = []
    monkeypatch.setattr("service.cli.startup.listen", lambda settings: listened.append(settings) or 0)
    code, _, error = inlay("serve", "--store", store, "--alias", "org/x=mine", "--alias", "y=mine", *words)
    assert (code, error) == (0, "")
    (settings,) = listened
    assert (settings.models, settings.model_of_alias) == (("mine",), {"org/x": "mine", "y": "mine"})


def test_a_name_that_is_not_there_gets_those_that_are(checkpoint: Path, store: Path, inlay: Run) -> None:
    export(checkpoint, store / "mine")
    code, _, error = inlay("serve", "--store", store, "mime")
    assert code == 2
    assert "the store has no model of that name; it has 'mine'" in error


def test_serve_shows_no_word_that_may_be_a_key(store: Path, inlay: Run) -> None:
    for words in (["s3cret"], ["--api-keys", "one,", "org/s3cret"]):
        code, out, error = inlay("serve", "--store", store, *words)
        assert (code, out) == (2, "")
        assert "1 of the words belong to no option" in error
        assert "s3cret" not in error
