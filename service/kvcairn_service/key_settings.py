"""Encryption keys from settings, or from the environment of a command."""

import importlib
from collections.abc import Mapping
from pathlib import Path

from kvcairn_service.errors import SettingsError
from kvcairn_service.settings import Settings
from kvcairn_storage.keyring import KeyRing, parse_masters

NAME = "encryption_key"
VARIABLE, FILE_VARIABLE = "KVCAIRN_ENCRYPTION_KEY", "KVCAIRN_ENCRYPTION_KEY_FILE"
_PACKAGE = "cryptography"


def ring_of(settings: Settings) -> KeyRing:
    """The keys that the settings name, none by default; SettingsError where the package for them is not installed."""
    if settings.encryption_key is None:
        return KeyRing()
    return _ring(settings.encryption_key.get_secret_value(), NAME)


def ring_of_environment(environ: Mapping[str, str]) -> KeyRing:
    """The same for commands on a directory that is not served."""
    path, text = environ.get(FILE_VARIABLE), environ.get(VARIABLE)
    if path and text:
        raise SettingsError(f"{VARIABLE} and {FILE_VARIABLE} are both set; keep one")
    if path:
        return _ring(read_key_file(Path(path)), FILE_VARIABLE)
    return _ring(text, VARIABLE) if text else KeyRing()


def _ring(text: str, where: str) -> KeyRing:
    try:
        importlib.import_module(_PACKAGE)
    except ModuleNotFoundError:
        missing = f"{where} needs {_PACKAGE}, which is not installed: pip install 'kvcairn[encryption]'"
        raise SettingsError(missing) from None
    try:
        return KeyRing(parse_masters(text, where))
    except ValueError as error:
        raise SettingsError(str(error)) from None


def read_key_file(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{NAME}_file: cannot read {path}: {error}") from None
