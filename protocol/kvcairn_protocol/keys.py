"""Keys as text: one a line, in hex; empty lines and lines that start with # say nothing. Pure; shared by both sides."""

MOST_BYTES = 1024


def parse_keys(text: str, where: str, *, least_bytes: int, most_bytes: int | None = None) -> list[bytes]:
    """The keys in a text, in order. ValueError names the line and what would be right, and repeats nothing of it.

    where: what the text is, for messages. least_bytes, most_bytes: how long a key is.
    """
    right, sizes = _right(least_bytes, most_bytes), range(least_bytes, (most_bytes or MOST_BYTES) + 1)
    keys = []
    for number, line in enumerate(text.splitlines(), start=1):
        digits = line.strip()
        if digits and not digits.startswith("#"):
            keys.append(_parse(digits, f"line {number} of {where}", right, sizes))
    if not keys:
        raise ValueError(f"{where} holds no key; a key is a line of {right}")
    return keys


def _right(least_bytes: int, most_bytes: int | None) -> str:
    digits = f"{2 * least_bytes} digits" if least_bytes == most_bytes else f"{2 * least_bytes} digits or more"
    return f"hex, {digits} (openssl rand -hex 32)"


def _parse(digits: str, where: str, right: str, sizes: range) -> bytes:
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        raise ValueError(f"{where} is no key; a key is {right}") from None
    if len(key) not in sizes:
        raise ValueError(f"{where} has {len(key)} bytes; a key is {right}")
    return key
