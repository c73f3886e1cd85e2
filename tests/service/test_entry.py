"""The command where only the client was installed."""

import subprocess
import sys

BLOCKED = """
import sys
sys.modules["typer"] = None
sys.argv = ["kvcairn", "version"]
from kvcairn_service.__main__ import main
main()
"""


def test_without_its_packages_the_command_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "kvcairn: the command needs typer; install it with: pip install 'kvcairn[service]'\n"
