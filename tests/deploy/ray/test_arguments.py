"""Settings of a Ray Serve replica."""

from typing import Any

import pytest

from deploy.ray.arguments import check_names, replica_settings
from service.errors import StartError

STORE = {"store": "/models"}


def test_threads_are_the_cores_that_ray_gives() -> None:
    assert replica_settings(STORE, 3.0).threads == 3
    assert replica_settings(STORE, 0.5).threads == 1
    assert replica_settings(STORE | {"threads": 2}, 8.0).threads == 2


def test_tables_are_bounded_as_answers_are() -> None:
    settings = replica_settings(STORE | {"max_answer_bytes": 1000}, 1)
    assert settings.max_table_bytes == 1000
    assert replica_settings(STORE | {"max_table_bytes": 5000}, 1).max_table_bytes == 5000


def test_arguments_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_STORE", "/variables")
    monkeypatch.setenv("INLAY_MODELS", "a,b")
    assert str(replica_settings({}, 1).store) == "/variables"
    settings = replica_settings(STORE | {"models": ["c", "d"]}, 1)
    assert (str(settings.store), settings.models) == ("/models", ("c", "d"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"workers": 2}, "workers has no use behind Ray Serve"),
        ({"tls_cert": "/a", "tls_key": "/b"}, "tls_cert has no use"),
        ({"management_port": 9090}, "management_port has no use"),
        ({"model_control": "explicit"}, "model_control has no use"),
        ({"store": "models/store"}, "store is 'models/store', and replicas run"),
        ({"max_inputs": 0}, "max_inputs in args is 0; allowed: 1 or more"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(StartError, match="^" + said.replace("(", r"\(")):
        replica_settings(STORE | arguments, 1)


def test_value_of_a_key_is_not_shown() -> None:
    with pytest.raises(StartError) as refused:
        replica_settings(STORE | {"api_keys": ["secret", 5]}, 1)
    assert "secret" not in str(refused.value)


def test_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_API_KEY", "x")
    with pytest.raises(StartError, match="did you mean INLAY_API_KEYS"):
        replica_settings(STORE, 1)


def test_misspelt_argument_is_refused() -> None:
    check_names(["store", "models"])
    with pytest.raises(StartError, match=r"modles is not a setting \(did you mean models\?\)"):
        check_names(["modles"])
