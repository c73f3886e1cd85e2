"""Commands on a data directory: check and backup, also beside a running service."""


def check_command() -> None:
    """Check."""


def backup_command() -> None:
    """Backup."""
