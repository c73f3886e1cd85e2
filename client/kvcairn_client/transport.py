"""Data plane: records go from the socket into the caller's buffers, and from the caller's buffers to the socket."""

from collections.abc import Sequence

from kvcairn_client.control import ANSWER_BYTES, read_as
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BadAnswer
from kvcairn_client.exchange import Exchanges, Request
from kvcairn_client.outgoing import StoreBody
from kvcairn_client.receive import Tally
from kvcairn_client.records import Wanted
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import RECORDS_TYPE, RecordRef, RecordsRequest, StoreAnswer

JSON_TYPE = "application/json"


class Transport:
    """Moves the bodies of fetches and stores. Thread-safe."""

    def __init__(self, exchanges: Exchanges, *, stall_seconds: float) -> None:
        self._exchanges = exchanges
        self._stall_seconds = stall_seconds

    def fetch(self, layout: Layout, wanted: Sequence[Wanted], tally: Tally, deadline: Deadline) -> None:
        """One request. Fills targets, notes each record in `tally`, raises the ClientError that ended it early."""
        with self._exchanges.send(_fetch_request(layout, wanted), deadline, stall_seconds=self._stall_seconds) as body:
            if body.content_type != RECORDS_TYPE:
                raise BadAnswer(f"a fetch is answered with {RECORDS_TYPE}; got {body.content_type}")
            try:
                for item in wanted:
                    tally.take(body, item)
            finally:
                tally.settle()

    def store(self, outgoing: StoreBody, deadline: Deadline) -> StoreAnswer:
        """One request; the service's answer, its indices counted from the body's first record."""
        request = Request("/v1/records:store", RECORDS_TYPE, JSON_TYPE, outgoing.size_bytes, lambda: outgoing.parts)
        with self._exchanges.send(request, deadline) as body:
            return read_as(StoreAnswer, body.read(at_most_bytes=ANSWER_BYTES))


def _fetch_request(layout: Layout, wanted: Sequence[Wanted]) -> Request:
    records = [RecordRef(kind=item.kind.label, key=item.key.hex()) for item in wanted]
    asked = RecordsRequest(layout=layout.fingerprint.hex(), records=records)
    body = asked.model_dump_json().encode()
    return Request("/v1/records:fetch", JSON_TYPE, RECORDS_TYPE, len(body), lambda: [body])
