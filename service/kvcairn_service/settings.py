"""Settings: flags before environment (KVCAIRN_*) before file (--config, TOML); unknown names are refused by name.

Frozen, validated as a whole. Sizes may be written "200GiB", "500MB" or as a number of bytes.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ByteSize, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from kvcairn_service.errors import SettingsError
from kvcairn_service.hosts import is_loopback

PREFIX = "KVCAIRN_"
CLIENT_VARIABLES = frozenset(
    {
        "KVCAIRN_URL",
        "KVCAIRN_TOKEN",
        "KVCAIRN_MAC_KEY_FILE",
        "KVCAIRN_TLS_CA",
        "KVCAIRN_CLIENT_CERT",
        "KVCAIRN_CLIENT_KEY",
    }
)
"""Read by clients and by the commands that ask a running service; known here so that one environment may hold both."""

MEBIBYTE = 1 << 20

Bytes = Annotated[ByteSize, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Settings(BaseSettings):
    """Everything that can be set, each under one name as variable and file key; the most used are flags, too."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data: Path
    config: Path | None = None
    host: str | None = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 7420
    uds: Path | None = None
    capacity: Bytes | None = None
    open_to: Annotated[tuple[str, ...], NoDecode] = ()
    admin_token: SecretStr | None = None
    admin_token_file: Path | None = None
    metrics_token: SecretStr | None = None
    metrics_token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    audit_log: Path | None = None
    encryption_key: SecretStr | None = None
    encryption_key_file: Path | None = None

    max_layouts: Count = 256
    max_layout_bytes: Bytes = ByteSize(256 << 10)
    max_pins: Count = 256
    max_pin_seconds: Count = 30 * 86_400
    max_keys: Count = 16_384
    max_record_bytes: Bytes = ByteSize(64 * MEBIBYTE)
    max_body_bytes: Bytes = ByteSize(256 * MEBIBYTE)
    max_requests: Count = 256
    max_connections: Count = 1024
    upload_memory_bytes: Bytes = ByteSize(160 * MEBIBYTE)

    stall_seconds: Seconds = 30.0
    min_bytes_per_second: Bytes = ByteSize(256 << 10)
    header_seconds: Seconds = 20.0
    keep_alive_seconds: Seconds = 75.0
    drain_seconds: Seconds = 30.0
    sweep_seconds: Seconds = 30.0
    scrub_bytes_per_second: Annotated[ByteSize, Field(ge=0)] = ByteSize(4 * MEBIBYTE)
    reencrypt_bytes_per_second: Bytes = ByteSize(32 * MEBIBYTE)

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["plain", "json"] = "plain"

    @property
    def max_json_bytes(self) -> int:
        """More than any request of `max_keys` keys needs, even one that is indented; beyond it none is parsed."""
        return max(64 << 10, self.max_keys * 256)

    @property
    def sends_tokens_in_clear(self) -> bool:
        """Whether callers send their tokens over a network, and everybody on the way can read them."""
        return not self.is_open and self.host is not None and self.tls_cert is None and not is_loopback(self.host)

    @property
    def is_open(self) -> bool:
        """Whether every caller is the tenant `default` and the admin: no admin token was given."""
        return self.admin_token is None

    @field_validator("open_to", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)):
            return names
        return tuple(name.strip().lower().strip("[]") if isinstance(name, str) else name for name in names if name)

    @field_validator("host", "uds", "config", "capacity", "audit_log", mode="before")
    @classmethod
    def _none_is_none(cls, value: object) -> object:
        return None if value in ("", "none") else value

    @model_validator(mode="before")
    @classmethod
    def _read_token_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in ("admin_token", "metrics_token", "encryption_key"):
            path = values.get(f"{name}_file")
            if path and values.get(name) is not None:
                raise ValueError(f"{name} and {name}_file are both set; keep one")
            if path:
                values = {**values, name: _read_secret(Path(path), f"{name}_file")}
        return values

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        self._check_tokens()
        self._check_places()
        self._check_tls()
        if self.upload_memory_bytes < 2 * self.max_record_bytes:
            raise ValueError("upload_memory_bytes must be at least twice max_record_bytes")
        if self.max_body_bytes <= self.max_record_bytes:
            raise ValueError("max_body_bytes must be more than max_record_bytes, else the largest record never fits")
        return self

    def _check_tokens(self) -> None:
        for name in ("admin_token", "metrics_token"):
            secret = getattr(self, name)
            if secret is not None and not is_token(secret.get_secret_value()):
                raise ValueError(f"{name} must be printable ASCII without spaces, and not empty")
        if self.metrics_token is not None and self.is_open:
            raise ValueError("metrics_token has no meaning without admin_token: an open service asks for no token")
        if self.metrics_token is not None and self.metrics_token == self.admin_token:
            raise ValueError("metrics_token is the admin's token; who reads metrics would be the admin: make another")

    def _check_places(self) -> None:
        if self.host is None and self.uds is None:
            raise ValueError("neither host nor uds is set; the service would listen nowhere")
        if not self.is_open and self.open_to:
            raise ValueError("open_to has no meaning with admin_token: tokens decide who may call")
        if self.is_open and self.host is not None and not self._may_bind(self.host):
            raise ValueError(
                f"host: without an admin token the service is open to whoever reaches it, so it binds loopback only, "
                f"not {self.host}; set KVCAIRN_ADMIN_TOKEN, or say --open-to {self.host} at your own risk"
            )

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ValueError(f"{given} is set and {missing} is not; TLS needs both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError(
                "tls_client_ca has no meaning without tls_cert and tls_key: only TLS asks for certificates"
            )
        if self.tls_cert is not None and self.host is None:
            raise ValueError("tls_cert has no meaning with host none: a Unix socket stays plain")

    def _may_bind(self, host: str) -> bool:
        return is_loopback(host) or host.lower().strip("[]") in self.open_to

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic-settings'
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the TOML file that one of them names."""
        given = {**env_settings(), **init_settings()}
        path = given.get("config")
        sources = (init_settings, env_settings)
        return (*sources, TomlConfigSettingsSource(settings_cls, Path(path))) if path else sources


def load_settings(flags: Mapping[str, Any]) -> Settings:
    """Settings from flags (None: not given), os.environ and the file; SettingsError names what is wrong."""
    given = {name: value for name, value in flags.items() if value is not None}
    refuse_unknown_variables(os.environ)
    _check_file(given.get("config") or os.environ.get(f"{PREFIX}CONFIG"))
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(each) for each in error.errors(include_url=False))) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the configuration file is no TOML: {error}") from None


def refuse_unknown_variables(environ: Iterable[str]) -> None:
    """A misspelt variable must not be ignored in silence; SettingsError names it and the nearest known one."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | CLIENT_VARIABLES
    for name in sorted(set(environ)):
        if name.startswith(PREFIX) and name not in known:
            raise SettingsError(f"{name} is no setting of kvcairn{_nearest(name, known)}{_service_links(environ)}")


def _service_links(environ: Iterable[str]) -> str:
    if "KVCAIRN_SERVICE_HOST" not in environ:
        return ""
    return "; Kubernetes makes such variables of a Service named kvcairn: set enableServiceLinks: false for the pod"


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _check_file(path: str | Path | None) -> None:
    if path and not Path(path).is_file():
        raise SettingsError(f"config: there is no file {path}")


def _explain(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{name} is no setting of kvcairn{_nearest(name, Settings.model_fields)}"
    if error["type"] == "missing":
        return f"{name} is needed: --{name.replace('_', '-')}, {PREFIX}{name.upper()}, or {name} in the file"
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" if name else message


def _read_secret(path: Path, name: str) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: cannot read {path}: {error}") from None


def is_token(text: str) -> bool:
    """Whether the text can be sent as a bearer token."""
    return bool(text) and all("!" <= each <= "~" for each in text)
