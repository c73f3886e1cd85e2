"""A long agent system prompt, of the kind that every request of a product repeats."""

SYSTEM_TOKENS = 8_000

RULES = """You are the support agent of a hosting company. Answer from the handbook below and from nothing else.
Say which section you used. If the handbook does not cover a question, say so and offer to open a ticket.
Never ask for a password. Never promise a date that the handbook does not give.
"""
SECTION = """
## Section {number}: {title}
Customers on plan {plan} may {verb} their {thing} up to {count} times a month. The {thing} is kept for {days} days
after that, and can be brought back by a ticket of class {grade}. A {thing} larger than {size} GB needs the consent of
the account's owner.
"""
TITLES = ("Snapshots", "Backups", "Certificates", "Mailboxes", "Domains", "Databases", "Volumes", "Keys")
VERBS = ("restore", "move", "rename", "copy", "lock", "share", "export")


def system_prompt(tokens: int = SYSTEM_TOKENS) -> str:
    """The rules and as many sections of the handbook as fill `tokens` tokens (here: bytes)."""
    text = RULES
    number = 0
    while len(text) < tokens:
        number += 1
        title = TITLES[number % len(TITLES)]
        text += SECTION.format(
            number=number, title=title, plan="ABCDE"[number % 5], verb=VERBS[number % len(VERBS)],
            thing=title.lower().removesuffix("s"), count=number % 9 + 1, days=7 * (number % 6 + 1),
            grade=number % 3 + 1, size=16 * (number % 7 + 1),
        )  # fmt: skip
    return text[:tokens]
