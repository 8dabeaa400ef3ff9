"""Settings from options and variables: what is refused, what `inlay check` tries, and that no error shows a secret."""

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from models.artifacts import card as cards
from models.errors import ModelError
from service.cli import checkpoints, startup
from service.cli.options import read_settings
from service.settings import SECTIONS, Settings
from tests.golden_cases import write_tiny_bert
from tests.service.cli.conftest import Run

SECRET = "correct-horse-battery"
NO_MODEL = "no model is loaded"


def refused(inlay: Run, *words: str | Path) -> str:
    """The one line with which `check` says why it cannot go on."""
    code, out, error = inlay("check", *words)
    assert (code, out, error.count("\n")) == (1, "", 1), error
    return error


# ---- variables


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("INLAY_API_KEY", "did you mean INLAY_API_KEYS?"),
        ("inlay_api_key", "did you mean INLAY_API_KEYS?"),
        ("INLAY_APIKEYS", "did you mean INLAY_API_KEYS?"),
        ("INLAY_KEYS", "did you mean INLAY_API_KEYS?"),
        ("INLAY_MAX_BODY_BYTE", "did you mean INLAY_MAX_BODY_BYTES?"),
        ("INLAY_MODEL_STORE_QUOTA", "unset it"),
        ("INLAY_REST_PORT", "INLAY_REST_PORT is not a setting"),
    ],
)
def test_rejects_unknown_variable_and_names_the_nearest(
    inlay: Run, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.setenv(name, SECRET)
    error = refused(inlay)
    assert f"{name.upper()} is not a setting" in error
    assert meant in error
    assert SECRET not in error


@pytest.mark.parametrize(
    "variables",
    [
        {"INLAY_API_KEY": ""},
        {"INLAY_API_KEYS": ""},
        {"inlay_port": "0"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"INLAYS_API_KEY": "another program's"},
        {
            "INLAY_SERVICE_HOST": "10.0.0.1",
            "INLAY_SERVICE_PORT": "8080",
            "INLAY_SERVICE_PORT_REST": "8080",
            "INLAY_PORT_8080_TCP": "tcp://10.0.0.1:8080",
            "INLAY_PORT_8080_TCP_PROTO": "tcp",
            "INLAY_GPU_PORT": "tcp://10.0.0.1:8080",
            "INLAY_GPU_PORT_50051_TCP_ADDR": "10.0.0.1",
        },
        {"INLAY_PORT": "tcp://10.0.0.1:8080", "INLAY_GRPC_PORT": "tcp://10.0.0.2:50051"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_ignores_empty_and_kubernetes_variables(
    inlay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, error = inlay("check", "--store", tmp_path)
    assert (code, NO_MODEL in out, error) == (0, True, "")


def served(inlay: Run, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Settings, str]:
    """The settings that `serve` would listen with, and what it said before."""
    listened: list[Settings] = []
    monkeypatch.setattr(startup, "listen", lambda settings: listened.append(settings) or 0)
    code, out, error = inlay("serve", *words)
    assert (code, error) == (0, "")
    return listened[0], out


def test_serve_reads_variables_of_other_servers(inlay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INLAY_STORE", str(tmp_path / "store"))
    for name, value in (("MODEL_ID", str(write_tiny_bert(tmp_path / "tiny"))), ("PORT", "8123"), ("API_KEY", SECRET)):
        monkeypatch.setenv(name, value)
    settings, out = served(inlay, monkeypatch)
    assert (settings.port, settings.models) == (8123, ("tiny",))
    assert [key.get_secret_value() for key in settings.api_keys] == [SECRET]
    assert [line for line in out.splitlines() if " is read as " in line] == [
        "inlay: PORT is read as --port",
        "inlay: API_KEY is read as --api-keys",
        "inlay: MODEL_ID is read as --model",
    ]
    assert SECRET not in out


def test_serve_reads_the_pooling_and_prompts_of_other_servers(
    inlay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INLAY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("POOLING", "last-token")
    monkeypatch.setenv("DEFAULT_PROMPT", "q: ")
    settings, out = served(inlay, monkeypatch)
    assert (settings.default_prompt, settings.pooling) == ("q: ", None)  # there is no checkpoint to pool
    assert "POOLING" not in out
    monkeypatch.setenv("MODEL_ID", str(write_tiny_bert(tmp_path / "tiny")))
    settings, out = served(inlay, monkeypatch)
    assert "inlay: POOLING is read as --pooling\n" in out
    pooling = cards.read(tmp_path / "store/tiny").pooling
    assert pooling is not None
    assert pooling.mode == "lasttoken"
    monkeypatch.setenv("DEFAULT_PROMPT_NAME", "query")
    code, _, error = inlay("serve")
    assert (code, error) == (1, "inlay: INLAY_DEFAULT_PROMPT and INLAY_DEFAULT_PROMPT_NAME are both set: set one\n")
    assert served(inlay, monkeypatch, "--default-prompt", "d: ")[0].default_prompt == "d: "


def test_a_revision_is_of_the_model_id(inlay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INLAY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MODEL_ID", "org/name")
    monkeypatch.setenv("REVISION", "v7")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked: list[str] = []
    monkeypatch.setattr(checkpoints, "export", lambda checkpoint, *_, **__: asked.append(checkpoint) or stop())
    inlay("serve")
    inlay("serve", "--model", "org/other")
    assert asked == ["org/name@v7", "org/other"]


def stop() -> None:
    raise ModelError("it is not exported here")


@pytest.mark.parametrize("words", [("--pooling", "cls"), ("--adapter", "a=b")])
def test_options_of_a_checkpoint_need_one(words: tuple[str, ...], inlay: Run, tmp_path: Path) -> None:
    code, _, error = inlay("serve", "--store", tmp_path, *words)
    assert (code, error) == (
        2,
        "inlay: --pooling and --adapter are of a model that is given as a checkpoint: add --model\n",
    )


def test_inlays_own_variables_and_options_win(inlay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{SECRET}\n")
    for name in ("PORT", "API_KEY", "MODEL_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("INLAY_API_KEYS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("INLAY_MODELS", "tiny")
    settings, out = served(inlay, monkeypatch, "--port", "8124")
    assert (settings.port, settings.api_keys, settings.models) == (8124, (), ("tiny",))
    assert "is read as" not in out


def test_a_wrong_port_of_the_host_is_named(inlay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "http")
    code, _, error = inlay("serve")
    assert (code, error) == (1, "inlay: PORT is 'http'; allowed: a whole number\n")


def test_the_address_of_a_service_leaves_the_default_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_PORT", "tcp://10.0.0.1:9000")
    monkeypatch.setenv("INLAY_GRPC_PORT", "50052")
    settings = read_settings({})
    assert (settings.port, settings.grpc_port) == (8080, 50052)


def test_rejects_a_service_address_as_an_option(inlay: Run) -> None:
    assert "--port is 'tcp://10.0.0.1:80'; allowed: a whole number" in refused(inlay, "--port", "tcp://10.0.0.1:80")


def test_options_win_over_variables(inlay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INLAY_STORE", "/nowhere")
    assert inlay("check", "--store", tmp_path)[0] == 0
    assert "/nowhere does not exist" in refused(inlay)


@pytest.mark.parametrize("keys", [" , ,", ",", " "])
@pytest.mark.parametrize("by_option", [False, True])
def test_rejects_a_list_of_keys_without_a_key(
    inlay: Run, monkeypatch: pytest.MonkeyPatch, keys: str, by_option: bool
) -> None:
    if not by_option:
        monkeypatch.setenv("INLAY_API_KEYS", keys)
    error = refused(inlay, *(["--api-keys", keys] if by_option else []))
    assert error.startswith(f"inlay: {'--api-keys' if by_option else 'INLAY_API_KEYS'}: it holds commas and spaces")


# ---- secrets


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([f"--api-key={SECRET}"], "--api-key is not an option of serve (did you mean --api-keys?)"),
        (["--api-key", SECRET], "--api-key is not an option of serve (did you mean --api-keys?)"),
        (["--api", SECRET], "--api is not an option of serve"),
        ([f"--key={SECRET}"], "--key is not an option of serve"),
        (["--modle", SECRET], "--modle is not an option of serve (did you mean --model?)"),
        (["--api-keys", "one,", SECRET], "1 of the words belong to no option"),
        (["--port", "1", "-k", SECRET], "2 of the words"),
        ([SECRET], "1 of the words"),
    ],
)
def test_wrong_usage_names_the_option_but_no_value(inlay: Run, words: list[str], meant: str) -> None:
    code, out, error = inlay("serve", *words)
    assert (code, out) == (2, "")
    assert meant in error
    assert SECRET not in error


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"ftp://user:{SECRET}@host:21", "'ftp://***@host:21'"),
        (f"user:{SECRET}@host", "'***@host'"),
        (f"ftp://user:a/{SECRET}@host", "'ftp://***@host'"),
        (f"ftp://user:a@{SECRET}@host", "'ftp://***@host'"),
        ("collector:4317", "'collector:4317'"),
    ],
)
@pytest.mark.parametrize("variable", ["INLAY_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_an_address_is_shown_without_user_and_password(
    inlay: Run, monkeypatch: pytest.MonkeyPatch, variable: str, address: str, shown: str
) -> None:
    monkeypatch.setenv(variable, address)
    error = refused(inlay)
    assert f" is {shown}; allowed: " in error
    assert SECRET not in error


@pytest.mark.parametrize("words", [["settings"], ["serve", "--help"]])
def test_no_command_shows_a_key(inlay: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setenv("INLAY_API_KEYS", SECRET)
    code, out, error = inlay(*words)
    assert (code, SECRET in out + error) == (0, False)


# ---- values


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("--port", "abc", "a whole number"),
        ("--port", "70000", "65535 at most"),
        ("--threads", "-1", "0 or more"),
        ("--max-queue-seconds", "0", "more than 0.0"),
        ("--log-inputs", "maybe", "true or false"),
        ("--device", "gpu", "'auto', 'cpu' or 'cuda'"),
        ("--otlp-endpoint", "collector:4318", "http://HOST:PORT or https://HOST:PORT"),
        ("INLAY_PORT", "99999", "65535 at most"),
        ("INLAY_DEVICE", "tpu", "'auto', 'cpu' or 'cuda'"),
    ],
)
def test_wrong_value_is_named_where_it_was_set(
    inlay: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    if name.startswith("INLAY_"):
        monkeypatch.setenv(name, value)
    error = refused(inlay, *([] if name.startswith("INLAY_") else [name, value]))
    assert error == f"inlay: {name} is {value!r}; allowed: {allowed}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--port 1024 --grpc-port 1024", "INLAY_PORT and INLAY_GRPC_PORT are both 1024"),
        ("--pinned-models a", "INLAY_PINNED_MODELS needs INLAY_LOAD=on-demand"),
        ("--keep-alive 5m,a=1d", "--keep-alive is '5m,a=1d': '1d' is no duration: write seconds, 5m or 1h30m"),
        ("--keep-alive a=5m,a=1h", "it names a model twice"),
        ("--management-port 8080", "INLAY_PORT and INLAY_MANAGEMENT_PORT are both 8080"),
        (
            "--management-port 1 --model-control explicit --tls-client-ca ca.pem",
            "anyone who reaches it could load models: set INLAY_API_KEYS",
        ),
    ],
)
def test_rejects_settings_that_contradict_each_other(inlay: Run, words: str, meant: str) -> None:
    assert meant in refused(inlay, *words.split())


def test_an_interval_that_sends_no_metrics_is_refused(inlay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for sent in ("a minute", "0", "-5", "nan"):
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", sent)
        said = refused(inlay)
        assert said == f"inlay: OTEL_METRIC_EXPORT_INTERVAL is '{sent}'; allowed: milliseconds, a whole number from 1\n"


def test_port_0_takes_a_free_one_for_each_protocol() -> None:
    assert Settings(port=0, grpc_port=0).port == 0


def test_every_section_begins_at_a_setting() -> None:
    assert list(SECTIONS) == [name for name in Settings.model_fields if name in SECTIONS]
    assert next(iter(Settings.model_fields)) in SECTIONS


# ---- what check tries


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--api-keys-file", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--api-keys", f"{SECRET},{SECRET}"], "twice"),
        (["--api-keys", f"fine,{SECRET} {SECRET}"], "entry 2"),
        (["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"], "nowhere.pem cannot be used for TLS"),
        (["--tls-cert", "nowhere.pem"], "INLAY_TLS_CERT and INLAY_TLS_KEY both"),
        (["--models", "absent"], "holds no 'absent'"),
        (["--default-model", "absent"], "INLAY_DEFAULT_MODEL names 'absent', which is not served"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else each,
)
def test_check_rejects_the_settings_that_serve_rejects(
    inlay: Run, tmp_path: Path, words: list[str], meant: str
) -> None:
    error = refused(inlay, "--store", tmp_path, *words)
    assert meant in error
    assert SECRET not in error


@pytest.mark.parametrize("store", [None, "empty"])
def test_check_of_a_store_without_models_says_how_to_add_one(
    inlay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    code, out, error = inlay("check", *(["--store", store] if store else []))
    assert (code, error) == (0, "")
    assert f"no model is loaded, {store or tmp_path / 'data/inlay/models'} holds none" in out
    assert "inlay serve --model CHECKPOINT_OR_HUB_ID" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no default model: this server holds several models and none is the default; "),
        (["--default-model", "bert"], ""),
        (["--models", "bert", "--watch-store", "1"], ""),
    ],
)
def test_check_says_that_there_is_no_default_model(inlay: Run, tiny_store: Path, words: list[str], said: str) -> None:
    code, out, _ = inlay("check", "--store", tiny_store, *words)
    assert code == 0
    assert (said in out) if said else ("no default model" not in out)


def test_check_reads_every_file_of_a_model(inlay: Run, tiny_store: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_store / "bert", tmp_path / "bert")
    assert inlay("check", "--store", tmp_path)[0] == 0
    weights = tmp_path / "bert/weights.safetensors"
    status = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-100] + bytes(100))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))  # as on a disk that lost bits
    assert f"{weights} is not the file its card was written for" in refused(inlay, "--store", tmp_path)
    assert inlay("check", "--store", tmp_path, "--verify", "off")[0] == 0


def test_only_model_of_a_watched_store_is_told_what_keeps_it(inlay: Run, tiny_store: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_store / "bert", tmp_path / "bert")
    for words in (["--watch-store", "1"], ["--model-control", "explicit"]):
        assert "; INLAY_DEFAULT_MODEL=bert keeps it" in inlay("check", "--store", tmp_path, *words)[1]
    assert "keeps it" not in inlay("check", "--store", tmp_path)[1]


def test_models_are_chosen_by_name(inlay: Run, tiny_store: Path) -> None:
    _, out, _ = inlay("check", "--store", tiny_store, "--models", "llama")
    assert ("llama" in out, "bert" in out) == (True, False)


def test_missing_configured_store_is_an_error(inlay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "model store nowhere does not exist" in refused(inlay, "--store", "nowhere")
    monkeypatch.setenv("INLAY_STORE", "nowhere")
    assert "model store nowhere does not exist" in refused(inlay)


def test_check_opens_tracing_without_connecting(inlay: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as collector:
        collector.setblocking(False)
        address = f"http://127.0.0.1:{collector.getsockname()[1]}"
        assert inlay("check", "--store", tmp_path, "--otlp-endpoint", address)[0] == 0
        with pytest.raises(BlockingIOError):
            collector.accept()


def test_check_refuses_tracing_that_is_not_installed(
    inlay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert "install the extra `otel`" in refused(inlay, "--store", tmp_path, "--otlp-endpoint", "http://a:1")


def test_check_names_a_short_key_without_showing_it(
    inlay: Run, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    code, out, error = inlay("check", "--store", tmp_path, "--api-keys", f"mine:brief,other:{SECRET}")
    assert code == 0
    assert "can be guessed: mine;" in caplog.text
    assert "brief" not in caplog.text + out + error
