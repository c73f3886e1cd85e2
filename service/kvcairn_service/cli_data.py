"""Commands on a data directory: check and backup, also beside a running service."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvcairn_service.cli_asking import JsonFlag
from kvcairn_service.cli_output import fail, print_json
from kvcairn_service.errors import SettingsError
from kvcairn_service.key_settings import FILE_VARIABLE, ring_of_environment
from kvcairn_storage.errors import StorageError
from kvcairn_storage.integrity import Opened, as_stored
from kvcairn_storage.lmdb import LmdbReader
from kvcairn_storage.store import PLAIN

Directory = Annotated[Path, typer.Argument(help="The data directory of a service.", show_default=False)]


@contextmanager
def reader(directory: Path) -> Iterator[LmdbReader]:
    """The directory, read-only; an error of the store ends the command with status 2."""
    try:
        opened = LmdbReader(directory)
        try:
            yield opened
        finally:
            opened.close()
    except StorageError as error:
        fail(str(error), status=2)


def check_command(
    data: Directory,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Read every record and verify it; status 1 if anything is wrong.

    May run beside the service that uses the directory: it reads only.

    Example:

        kvcairn check /var/lib/kvcairn
    """
    with reader(data) as store:
        records = store.count()
        faults = _check(store, records, _opened(store))
    if as_json:
        print_json({"records": records, "faults": faults})
    else:
        for fault in faults:
            typer.echo(fault)
        typer.echo(f"{records} records checked, {len(faults)} faults")
    if faults:
        raise typer.Exit(1)


def _opened(store: LmdbReader) -> Opened:
    """How to read values: as they are where none is encrypted, else with the keys of the environment, which must do."""
    used = {entry.key_id for _, entry in store.scan()} - {PLAIN}
    if not used:
        return as_stored
    try:
        ring = ring_of_environment(os.environ)
    except SettingsError as error:
        fail(str(error), status=2)
    lost = sorted(key_id.hex() for key_id in used if not ring.reads(key_id))
    if lost:
        fail(
            f"values are encrypted with key {', '.join(lost)}: let {FILE_VARIABLE} name a file that holds it", status=2
        )
    from kvcairn_storage.encrypted import open_value  # noqa: PLC0415 - needs the package cryptography

    return partial(open_value, ring)


def _check(store: LmdbReader, records: int, opened: Opened) -> list[str]:
    columns = TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("records", total=records)
        return store.check_integrity(lambda count: progress.advance(task, count), opened=opened)


def backup_command(
    data: Directory,
    target: Annotated[Path, typer.Argument(help="Where to; missing or empty.", show_default=False)],
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Copy a data directory as of one moment, with a new generation.

    May run beside the service that uses the directory. A service can be started on the copy.

    Example:

        kvcairn backup /var/lib/kvcairn /mnt/backup/kvcairn
    """
    with reader(data) as store:
        store.backup(target)
    with reader(target) as copy:
        records, generation = copy.count(), copy.identity.generation
    if as_json:
        print_json({"target": str(target), "records": records, "generation": generation})
    else:
        typer.echo(f"{records} records copied to {target}")
