"""Settings: where they come from, which win, and what is refused by name."""

import json

import pytest
from typer.testing import CliRunner

from kvcairn_service.cli import app
from kvcairn_service.errors import SettingsError
from kvcairn_service.settings import load_settings, refuse_unknown_variables


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("KVCAIRN_URL", "KVCAIRN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def refusal(flags):
    with pytest.raises(SettingsError) as caught:
        load_settings({"data": "/d", **flags})
    return str(caught.value)


def test_flags_win_over_environment_and_environment_over_the_file(monkeypatch, tmp_path):
    config = tmp_path / "kvcairn.toml"
    config.write_text('port = 1\ncapacity = "1GiB"\nlog_level = "error"\ndata = "/from-file"\n')
    monkeypatch.setenv("KVCAIRN_PORT", "2")
    monkeypatch.setenv("KVCAIRN_CAPACITY", "500MB")
    settings = load_settings({"config": config, "port": 3})
    assert (settings.port, settings.capacity, settings.log_level) == (3, 500_000_000, "error")
    assert str(settings.data) == "/from-file"


def test_the_environment_may_name_the_file(monkeypatch, tmp_path):
    config = tmp_path / "kvcairn.toml"
    config.write_text("port = 9\n")
    monkeypatch.setenv("KVCAIRN_CONFIG", str(config))
    assert load_settings({"data": "/d"}).port == 9


@pytest.mark.parametrize(
    ("text", "size"), [("200GiB", 200 << 30), ("500MB", 500_000_000), ("4096", 4096), (4096, 4096)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert load_settings({"data": "/d", "capacity": text}).capacity == size


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_known_one(tmp_path):
    config = tmp_path / "kvcairn.toml"
    config.write_text("capacty = 5\n")
    message = refusal({"config": config})
    assert "capacty" in message
    assert "capacity" in message.replace("capacty", "")


def test_an_unknown_variable_is_refused_with_the_nearest_known_one(monkeypatch):
    monkeypatch.setenv("KVCAIRN_CAPACTY", "1GiB")
    message = refusal({})
    assert "KVCAIRN_CAPACTY" in message
    assert "KVCAIRN_CAPACITY" in message


def test_variables_of_the_asking_commands_are_known():
    refuse_unknown_variables(["KVCAIRN_URL", "KVCAIRN_TOKEN", "KVCAIRN_DATA", "HOME"])


def test_the_variables_that_kubernetes_makes_are_explained():
    with pytest.raises(SettingsError, match="enableServiceLinks"):
        refuse_unknown_variables(["KVCAIRN_SERVICE_HOST", "KVCAIRN_PORT", "KVCAIRN_PORT_7420_TCP"])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"port": 70_000}, "port"),
        ({"port": "http"}, "port"),
        ({"capacity": "much"}, "capacity"),
        ({"capacity": "-1"}, "capacity"),
        ({"log_level": "loud"}, "log_level"),
        ({"stall_seconds": 0}, "stall_seconds"),
        ({"max_keys": 0}, "max_keys"),
        ({"host": "none"}, "host"),
        ({"host": "10.0.0.1"}, "--open-to 10.0.0.1"),
        ({"config": "/nowhere/at/all.toml"}, "/nowhere/at/all.toml"),
        ({"admin_token": ""}, "admin_token"),
        ({"admin_token": "two words"}, "admin_token"),
        ({"admin_token_file": "/nowhere"}, "/nowhere"),
        ({"metrics_token": "m"}, "metrics_token"),
        ({"admin_token": "same-token", "metrics_token": "same-token"}, "metrics_token is the admin's"),
        ({"admin_token": "a", "open_to": "x"}, "open_to"),
        ({"upload_memory_bytes": "64MiB"}, "upload_memory_bytes"),
        ({"max_body_bytes": "64MiB"}, "max_body_bytes"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_value_is_refused_by_name(flags, named):
    assert named in refusal(flags)


@pytest.mark.parametrize("max_keys", [1, 16_384, 40_000])
def test_a_request_of_all_the_keys_that_are_allowed_is_no_body_too_large(max_keys):
    records = [{"kind": "history", "key": "ab" * 32}] * max_keys
    request = json.dumps({"layout": "ab" * 32, "records": records}, indent=4)
    assert len(request) <= load_settings({"data": "/d", "max_keys": max_keys}).max_json_bytes


def test_the_data_directory_is_needed():
    with pytest.raises(SettingsError, match=r"--data.*KVCAIRN_DATA"):
        load_settings({})


def test_a_file_that_is_no_toml_is_refused(tmp_path):
    (tmp_path / "bad.toml").write_text("port =")
    assert "TOML" in refusal({"config": tmp_path / "bad.toml"})


def test_tokens_come_from_files_and_never_show(tmp_path):
    (tmp_path / "admin").write_text("very-secret\n")
    settings = load_settings({"data": "/d", "admin_token_file": tmp_path / "admin"})
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "very-secret"
    assert "very-secret" not in repr(settings)
    assert not settings.is_open
    assert "admin_token" in refusal({"admin_token": "a", "admin_token_file": tmp_path / "admin"})


def test_names_that_may_reach_an_open_service_are_split_at_commas():
    assert load_settings({"data": "/d", "open_to": "Host-A, [::1],b"}).open_to == ("host-a", "::1", "b")


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_settings({"data": "/d"}).port = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"KVCAIRN_PROT": "1"}, "KVCAIRN_PORT"),
        ({"KVCAIRN_MAX_KEYS": "x"}, "max_keys"),
        ({"KVCAIRN_HOST": "0.0.0.0"}, "--open-to"),  # noqa: S104 - what must not be bound
        ({"KVCAIRN_HOST": "::"}, "--open-to"),
    ],
)
def test_serve_refuses_with_one_line_and_status_2(monkeypatch, tmp_path, env, named):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data")])
    assert done.exit_code == 2
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_limits_are_what_the_settings_say(narrow_service):
    with narrow_service.http() as http:
        limits = http.get("/v1/service").json()["limits"]
        assert limits == {
            "layouts_per_tenant": 256, "layout_bytes": 256 << 10, "keys_per_request": 64,
            "record_bytes": 8 << 20, "body_bytes": 64 << 20, "pins_per_tenant": 256, "pin_seconds": 2_592_000,
        }  # fmt: skip
        asked = {"layout": "ab" * 32, "block_keys": ["ab" * 32] * 65}
        assert http.post("/v1/prefixes:lookup", json=asked).status_code == 413
