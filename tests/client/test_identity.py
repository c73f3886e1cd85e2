"""Whatever names a cache apart is a miss, through a real service: layout, salt, tenant, tokens and their order.

One prompt is stored under one layout. Then each part of its name is changed, alone, by a walk over the document, so
that a field which is added later is changed as well.
"""

import copy
import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvcairn_client.client import Client
from kvcairn_client.errors import Refused
from kvcairn_client.records import Outgoing, Wanted
from kvcairn_protocol.errors import LayoutError
from kvcairn_protocol.layout import Kind, Layout, parse_layout
from kvcairn_protocol.prefix import block_keys, parent_of
from serving import running_service

ADMIN = "admin-token-of-a-test"
DOCUMENT: dict[str, Any] = {
    "version": 1,
    "model": "org/model@1",
    "chained": True,
    "block_tokens": 8,
    "layers": 4,
    "replay_tokens": 21,
    "streams": [
        {"kind": "history", "name": "csa", "layer": 2, "tokens_per_row": 4, "row_shape": [4, 8], "dtype": "uint8"},
        {"kind": "history", "name": "hca", "layer": 3, "tokens_per_row": 8, "row_shape": [6], "dtype": "float16"},
        {"kind": "window", "name": "window", "layer": 1, "rows": 5, "row_shape": [4], "dtype": "bfloat16"},
        {"kind": "carry", "name": "overlap", "layer": 2, "rows": 2, "row_shape": [3], "dtype": "float32"},
    ],
    "identity": {"rope": "none", "adapter": "a", "forward_tokens": "8"},
}
TOKENS = list(range(1, 33))
SALT = "user-\u00e9"
WORDS = {
    "uint8": "int8", "float16": "bfloat16", "bfloat16": "float16", "float32": "float16", "window": "carry",
    "carry": "window",
}  # fmt: skip
ONE_VALUE = {("version",), ("streams", 0, "kind"), ("streams", 1, "kind")}
"""Where no other value obeys the rules, and so none can name anything: another kind of a history stream has other
fields, which is tested below."""

Path_ = tuple[str | int, ...]


def parsed(document: dict[str, Any]) -> Layout:
    return parse_layout(json.dumps(document))


LAYOUT = parsed(DOCUMENT)
KEYS = block_keys(LAYOUT, TOKENS, salt=SALT)


def leaves(part: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The place of every value that is no object and no list."""
    if isinstance(part, dict | list):
        for name, inner in part.items() if isinstance(part, dict) else enumerate(part):
            yield from leaves(inner, (*path, name))
    else:
        yield path


def others(value: Any) -> list[Any]:
    """Values of the same type and another content; AssertionError for a type that nobody thought of."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, value - 1, value // 2]
    assert isinstance(value, str), f"{value!r}: say here how a {type(value).__name__} is changed"
    return [WORDS[value]] if value in WORDS else [value + " ", value.upper(), value[:-1]]


def changed(path: Path_, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    part: Any = document
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return document


def variants_at(path: Path_) -> list[Layout]:
    """Every layout that another value there makes; rules forbid some."""
    value: Any = DOCUMENT
    for name in path:
        value = value[name]
    found = []
    for other in others(value):
        try:
            found.append(parsed(changed(path, other)))
        except LayoutError:
            continue
    return [layout for layout in found if layout != LAYOUT]


def edits() -> dict[str, Callable[[dict[str, Any]], object]]:
    """Changes that no single value makes."""
    return {
        "streams in another order": lambda document: document["streams"].reverse(),
        "a stream less": lambda document: document["streams"].pop(),
        "a stream twice": lambda document: document["streams"].append(document["streams"][-1]),
        "a carry for a history": lambda document: document["streams"][1].update(
            kind="carry", rows=document["streams"][1].pop("tokens_per_row")
        ),
        "a shape in another order": lambda document: document["streams"][0]["row_shape"].reverse(),
        "a shape with a one": lambda document: document["streams"][0]["row_shape"].append(1),
        "replay impossible": lambda document: document.update(replay_tokens=None),
        "an entry of identity more": lambda document: document["identity"].update(packing="x"),
        "an entry of identity less": lambda document: document["identity"].pop("adapter"),
        "an entry of identity renamed": lambda document: document["identity"].update(
            Adapter=document["identity"].pop("adapter")
        ),
        "two entries exchanged": lambda document: document["identity"].update(rope="a", adapter="none"),
    }


def edited(name: str) -> Layout:
    document = copy.deepcopy(DOCUMENT)
    edits()[name](document)
    return parsed(document)


@pytest.fixture(scope="module")
def tokens_of_tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A service's URL, and a token for each of two tenants; the first has stored the prompt."""
    with running_service(tmp_path_factory.mktemp("identity") / "data", env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as service:
        tokens = {}
        with service.http(token=ADMIN) as http:
            for tenant in ("owner", "other"):
                assert http.put(f"/v1/tenants/{tenant}", json={}).status_code == 200
                tokens[tenant] = http.post(f"/v1/tenants/{tenant}/tokens").json()["token"]
        yield service.url, tokens


@pytest.fixture(scope="module")
def owner(tokens_of_tenants: tuple[str, dict[str, str]]) -> Iterator[Client]:
    """A client of the tenant that has stored the prompt: history and states of all blocks."""
    url, tokens = tokens_of_tenants
    with Client(url, token=tokens["owner"]) as client:
        records = [
            Outgoing(kind, key, (index + 1) * 8, parent_of(KEYS, index), bytes(LAYOUT.payload_bytes(kind)))
            for kind in (Kind.HISTORY, Kind.STATE)
            for index, key in enumerate(KEYS)
        ]
        assert client.store(LAYOUT, records).stored == 8
        yield client


def loaded(client: Client, layout: Layout, keys: list[bytes]) -> list[bool]:
    """Which history and state records come, of these keys in order."""
    wishes = [
        Wanted(kind, key, (index + 1) * layout.block_tokens, memoryview(bytearray(layout.payload_bytes(kind))))
        for kind in (Kind.HISTORY, Kind.STATE)
        if layout.payload_bytes(kind)
        for index, key in enumerate(keys)
    ]
    return client.fetch(layout, wishes).loaded


def hit_blocks(client: Client, layout: Layout, keys: list[bytes]) -> int:
    """How many blocks hit; a state is never listed where the history does not reach."""
    found = client.lookup(layout, keys)
    assert all(position <= found.hit_tokens for position in found.state_tokens)
    return found.history_blocks


def is_a_miss(client: Client, layout: Layout, *, salt: str = SALT) -> bool:
    """Whether nothing comes for the prompt, by the layout's own keys or by those that were stored."""
    keys = block_keys(layout, TOKENS, salt=salt)
    assert not set(keys) & set(KEYS)
    if layout.chained:
        assert hit_blocks(client, layout, keys) == hit_blocks(client, layout, KEYS) == 0
    return not any([*loaded(client, layout, keys), *loaded(client, layout, KEYS)])


def test_the_prompt_itself_hits(owner: Client) -> None:
    assert hit_blocks(owner, parsed(DOCUMENT), block_keys(parsed(DOCUMENT), TOKENS, salt=SALT)) == 4
    assert loaded(owner, LAYOUT, KEYS) == [True] * 8


def test_another_spelling_of_the_same_document_hits(owner: Client) -> None:
    spelled = parse_layout(json.dumps(dict(reversed(DOCUMENT.items())), indent=3))
    assert hit_blocks(owner, spelled, block_keys(spelled, TOKENS, salt=SALT)) == 4


@pytest.mark.parametrize("path", list(leaves(DOCUMENT)), ids=lambda path: ".".join(map(str, path)))
def test_another_value_in_any_field_of_the_layout_is_a_miss(owner: Client, path: Path_) -> None:
    variants = variants_at(path)
    assert bool(variants) is not (path in ONE_VALUE), "each field has another value that the rules allow"
    assert all(is_a_miss(owner, layout) for layout in variants)


@pytest.mark.parametrize("name", edits())
def test_another_shape_of_the_layout_is_a_miss(owner: Client, name: str) -> None:
    assert is_a_miss(owner, edited(name))


def test_every_field_that_a_layout_can_have_is_in_the_document_that_is_changed() -> None:
    """So that a field which is added to the layout is added here, and its change tested."""
    assert set(Layout.model_fields) == set(DOCUMENT)
    for stream, document in zip(LAYOUT.streams, DOCUMENT["streams"], strict=True):
        assert set(type(stream).model_fields) == set(document)
    assert {type(stream).__name__ for stream in LAYOUT.streams} == {"HistoryStream", "WindowStream", "CarryStream"}


@pytest.mark.parametrize(
    "salt",
    [
        "",
        unicodedata.normalize("NFD", SALT),
        SALT + "\0",
        "\0" + SALT,
        SALT.upper(),
        SALT + " ",
        SALT.encode().decode("latin-1"),
        SALT + SALT,
        "user-",
        "user-e",
    ],
    ids=ascii,
)
def test_another_salt_is_a_miss(owner: Client, salt: str) -> None:
    keys = block_keys(LAYOUT, TOKENS, salt=salt)
    assert not set(keys) & set(KEYS)
    assert hit_blocks(owner, LAYOUT, keys) == 0
    assert not any(loaded(owner, LAYOUT, keys))


def test_no_salt_is_the_empty_one_and_a_salt_of_one_nul_is_another() -> None:
    plain, empty, nul = block_keys(LAYOUT, TOKENS), *(block_keys(LAYOUT, TOKENS, salt=salt) for salt in ("", "\0"))
    assert plain == empty
    assert not set(plain) & set(nul)


def test_another_tenant_misses_the_very_same_records(
    owner: Client, tokens_of_tenants: tuple[str, dict[str, str]]
) -> None:
    url, tokens = tokens_of_tenants
    with Client(url, token=tokens["other"]) as other:
        other.register(LAYOUT)
        assert hit_blocks(other, LAYOUT, KEYS) == 0
        assert not any(loaded(other, LAYOUT, KEYS))
    assert hit_blocks(owner, LAYOUT, KEYS) == 4


@pytest.mark.parametrize("place", range(len(TOKENS)))
def test_one_other_token_misses_from_its_block_on(owner: Client, place: int) -> None:
    tokens = [token + (index == place) * 1000 for index, token in enumerate(TOKENS)]
    keys, block = block_keys(LAYOUT, tokens, salt=SALT), place // 8
    assert hit_blocks(owner, LAYOUT, keys) == block
    assert loaded(owner, LAYOUT, keys) == [index < block for index in range(4)] * 2


@pytest.mark.parametrize(
    ("order", "hits"),
    [((1, 0, 2, 3), 0), ((0, 2, 1, 3), 1), ((3, 2, 1, 0), 0), ((1, 2, 3), 0), ((0, 0, 1, 2), 1), ((0, 1, 3), 2)],
)
def test_blocks_in_another_order_miss_from_the_first_that_stands_elsewhere(
    owner: Client, order: tuple[int, ...], hits: int
) -> None:
    tokens = [token for block in order for token in TOKENS[block * 8 : block * 8 + 8]]
    assert hit_blocks(owner, LAYOUT, block_keys(LAYOUT, tokens, salt=SALT)) == hits
    stored_keys = [KEYS[block] for block in order]
    assert hit_blocks(owner, LAYOUT, stored_keys) == hits, "the right keys at the wrong places are no hit either"
    right_places = [index == block for index, block in enumerate(order)]
    assert loaded(owner, LAYOUT, stored_keys) == right_places * 2


def test_an_unchained_layout_has_no_prefixes_to_hit(owner: Client) -> None:
    unchained = parsed({**DOCUMENT, "chained": False})
    with pytest.raises(Refused, match="chained"):
        owner.lookup(unchained, KEYS)
