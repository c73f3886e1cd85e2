"""`python -m kvcairn_service` is the command `kvcairn`."""

from kvcairn_service.cli import app

app(prog_name="kvcairn")
