"""A fake service and a client of it, both closed at the end of each test."""

from collections.abc import Iterator

import pytest

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.testing import FakeService


@pytest.fixture
def service() -> Iterator[FakeService]:
    with FakeService() as running:
        yield running


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client(service.url, budgets=samples.QUICK) as made:
        yield made
