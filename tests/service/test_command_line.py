"""The command line without a process of its own: what it refuses, what it tries, and that no failure shows a secret."""

import socket
import sys
from pathlib import Path

import pytest

from service.__main__ import main
from service.settings import Settings

SECRET = "correct-horse-battery"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads what the machine has set."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"INLAY_{name.upper()}", raising=False)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which `check` cannot go on."""
    assert main(["check", *arguments]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err


def misused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What wrong usage is told."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


# ---- names that are no setting


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("INLAY_API_KEY", "did you mean INLAY_API_KEYS?"),
        ("inlay_api_key", "did you mean INLAY_API_KEYS?"),
        ("INLAY_APIKEYS", "did you mean INLAY_API_KEYS?"),
        ("INLAY_KEYS", "did you mean INLAY_API_KEYS?"),
        ("INLAY_MAX_BODY_BYTE", "did you mean INLAY_MAX_BODY_BYTES?"),
        ("INLAY_MODEL_STORE_QUOTA", "unset it"),
        ("INLAY_REST_PORT", "INLAY_REST_PORT is no setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.setenv(name, SECRET)
    told = said(capsys, "--store", "nowhere")
    assert f"{name.upper()} is no setting" in told
    assert meant in told
    assert SECRET not in told


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
    ],
    ids=lambda each: next(iter(each)),
)
def test_what_is_empty_or_kubernetes_own_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "nowhere does not exist" in said(capsys, "--store", "nowhere")


@pytest.mark.parametrize("keys", [" , ,", ",", " "])
@pytest.mark.parametrize("by_flag", [False, True])
def test_keys_of_which_none_is_one_do_not_open_the_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, keys: str, by_flag: bool
) -> None:
    if not by_flag:
        monkeypatch.setenv("INLAY_API_KEYS", keys)
    told = said(capsys, "--store", "nowhere", *(["--api-keys", keys] if by_flag else []))
    assert told.startswith(f"inlay: {'--api-keys' if by_flag else 'INLAY_API_KEYS'}: commas and spaces are no key")


# ---- what may be secret


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ([f"--api-key={SECRET}"], "--api-key is no flag of serve (did you mean --api-keys?)"),
        (["--api-key", SECRET], "--api-key is no flag of serve (did you mean --api-keys?)"),
        (["--api", SECRET], "--api is no flag of serve"),
        ([f"--key={SECRET}"], "--key is no flag of serve"),
        (["--api-keys", "one,", SECRET], "1 of the words belong to no flag"),
        (["--port", "1", "-k", SECRET], "2 of the words"),
        ([SECRET], "1 of the words"),
    ],
)
def test_wrong_usage_names_the_flag_and_never_what_came_with_it(
    capsys: pytest.CaptureFixture[str], arguments: list[str], meant: str
) -> None:
    told = misused(capsys, "serve", *arguments)
    assert meant in told
    assert SECRET not in told


@pytest.mark.parametrize("arguments", [[SECRET], ["--api-keys", SECRET, "serve"], [f"--api-keys={SECRET}", SECRET]])
def test_a_word_in_the_commands_place_is_not_shown(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    told = misused(capsys, *arguments)
    assert "one of serve, check, settings, health" in told
    assert SECRET not in told


def test_a_misspelt_command_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean serve?" in misused(capsys, "sevre")


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
def test_an_address_that_will_not_do_is_shown_without_user_and_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str, address: str, shown: str
) -> None:
    monkeypatch.setenv(variable, address)
    told = said(capsys)
    assert f" is {shown}; allowed: " in told
    assert SECRET not in told


# ---- what check tries


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--api-keys-file", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--api-keys", f"{SECRET},{SECRET}"], "twice"),
        (["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"], "nowhere.pem cannot be used for TLS"),
        (["--tls-cert", "nowhere.pem"], "INLAY_TLS_CERT and INLAY_TLS_KEY both"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else each,
)
def test_check_refuses_what_serve_would(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str], told: str
) -> None:
    shown = said(capsys, "--store", str(tmp_path), *flags)  # the store holds no model: that would be told later
    assert told in shown
    assert SECRET not in shown


def test_check_tries_tracing_and_calls_nobody(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as collector:
        collector.setblocking(False)
        address = f"http://127.0.0.1:{collector.getsockname()[1]}"
        assert "holds no model" in said(capsys, "--store", str(tmp_path), "--otlp-endpoint", address)
        with pytest.raises(BlockingIOError):
            collector.accept()


def test_check_refuses_tracing_that_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert "install the extra `otel`" in said(capsys, "--store", str(tmp_path), "--otlp-endpoint", "http://a:1")


def test_check_names_a_short_key_and_does_not_show_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert main(["check", "--store", str(tmp_path), "--api-keys", f"mine:brief,other:{SECRET}"]) == 1
    assert "can be guessed: mine;" in caplog.text
    assert "brief" not in caplog.text + capsys.readouterr().err


# ---- values that are none


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("--port", "abc", "a whole number"),
        ("--port", "70000", "65535 at most"),
        ("--threads", "-1", "0 or more"),
        ("--max-queue-seconds", "0", "more than 0.0"),
        ("--log-inputs", "maybe", "true or false"),
        ("--device", "gpu", "'auto', 'cpu' or 'cuda'"),
        ("--otlp-endpoint", "collector:4318", "http://HOST:PORT or https://HOST:PORT"),
    ],
)
def test_a_value_is_refused_with_what_is_allowed(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, allowed: str
) -> None:
    assert said(capsys, flag, value) == f"inlay: {flag} is {value!r}; allowed: {allowed}\n"


def test_settings_that_do_not_go_together_are_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "INLAY_PORT and INLAY_GRPC_PORT are both 1024" in said(capsys, "--port", "1024", "--grpc-port", "1024")
    assert "set INLAY_WORKERS=1" in said(capsys, "--shared-memory", "true", "--workers", "2")
    Settings(port=0, grpc_port=0, shared_memory=True)  # 0 takes a free one each


def test_help_shows_what_each_flag_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    for words in ("--workers N", "--engine {onnx,reference}", "--access-log {true,false}", "--tls-cert PATH"):
        assert words in shown
    assert "--models A,B,..." in shown
