"""The command `kvcairn`, also as `python -m kvcairn_service`."""

import sys


def main() -> None:
    """Run the command line; where only the client was installed, say what is missing."""
    try:
        from kvcairn_service.cli import app  # noqa: PLC0415 - an inference host has the command, but not its packages
    except ModuleNotFoundError as error:
        sys.exit(f"kvcairn: the command needs {error.name}; install it with: pip install 'kvcairn[service]'")
    app(prog_name="kvcairn")


if __name__ == "__main__":
    main()
