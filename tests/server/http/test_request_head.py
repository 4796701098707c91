"""Heads: understood once, remembered by their bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import Reason
from interlace.server.errors import GRPC_STATUS, HTTP_STATUS, PHRASES, GrpcStatus, HttpError
from interlace.server.http.request_head import CHUNKED, RequestHeadReader
from interlace.server.http.responses import error_response, with_connection
from interlace.server.http.routes import Route, RouteTable
from interlace.server.limits import GenerationalCache, HttpLimits, RouteKind

ROUTER = RouteTable(
    [
        Route("/v2/models/{name}/infer", RouteKind.INFER),
        Route("/v2/models/stats", respond={"GET": lambda query: None}),  # type: ignore[dict-item,return-value]
        Route("/v2/models/{name}", respond={"GET": lambda query: None}),  # type: ignore[dict-item,return-value]
    ]
)


def head(*lines: str, first: str = "POST /v2/models/m/infer HTTP/1.1") -> bytes:
    return "\r\n".join([first, "Host: a", *lines, "", ""]).encode()


def test_every_reason_has_a_status_and_every_status_a_phrase() -> None:
    assert set(HTTP_STATUS) == set(GRPC_STATUS) == set(Reason)
    assert GrpcStatus.OK not in GRPC_STATUS.values()
    assert set(HTTP_STATUS.values()) <= set(PHRASES)


def test_the_same_bytes_are_understood_once() -> None:
    reader = RequestHeadReader(ROUTER, HttpLimits())
    assert reader.read(head()) is reader.read(head())
    long = head("X: " + "y" * 3000)
    assert reader.read(long) is not reader.read(long)


@pytest.mark.parametrize(
    ("accept", "coding", "asked"),
    [
        ("gzip", "gzip", True),
        ("deflate", "deflate", True),
        ("gzip, deflate, br", "gzip", False),
        ("br;q=1.0, deflate;q=0.5", "deflate", False),
        ("gzip;q=0, deflate", "deflate", True),
        ("identity", "", False),
        ("*", "", False),
    ],
)
def test_accepted_codings(accept: str, coding: str, asked: bool) -> None:
    found = RequestHeadReader(ROUTER, HttpLimits()).read(head(f"Accept-Encoding: {accept}"))
    assert (found.accept, found.accept_asked) == (coding, asked)


@given(st.binary(max_size=300))
def test_any_bytes_are_understood_or_refused(data: bytes) -> None:
    try:
        RequestHeadReader(ROUTER, HttpLimits()).read(data + b"\r\n\r\n")
    except HttpError as error:
        assert error.status in PHRASES
        assert error.detail


@given(
    st.lists(
        st.sampled_from(
            ["Content-Length: 5", "Content-Length: 6", "Transfer-Encoding: chunked",
             "Transfer-Encoding: identity", "Transfer-Encoding: gzip", "content-length : 5",
             "Connection: close", "Content-Length: 5,5", "Transfer-Encoding:\tchunked"]
        ),
        max_size=4,
    )
)  # fmt: skip
def test_a_length_is_never_ambiguous(lines: list[str]) -> None:
    framing = [line for line in lines if not line.startswith("Connection")]
    try:
        found = RequestHeadReader(ROUTER, HttpLimits()).read(head(*lines))
    except HttpError:
        return
    assert len(framing) <= 1
    assert found.length == {0: 0, 1: CHUNKED if "chunked" in "".join(framing) else None}.get(
        len(framing)
    ) or found.length in (5, 6)


def test_the_connection_header_comes_after_the_status() -> None:
    response = error_response(HttpError(404, "x"))
    assert with_connection(response, keep_alive=False).startswith(
        b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Type"
    )


@given(st.lists(st.integers(0, 30)))
def test_recall_is_bounded_and_never_wrong(keys: list[int]) -> None:
    recall: GenerationalCache[int, str] = GenerationalCache(4)
    for key in keys:
        found = recall.get(key)
        assert found in (None, str(key))
        if found is None:
            recall.put(key, str(key))
        assert recall.get(key) == str(key)
        assert len(recall) <= 8


def test_recall_keeps_what_is_used_through_a_flood() -> None:
    recall: GenerationalCache[int, str] = GenerationalCache(4)
    recall.put(-1, "hot")
    for key in range(100):
        recall.put(key, "cold")
        assert recall.get(-1) == "hot"


def test_a_path_longer_than_any_name_is_refused() -> None:
    with pytest.raises(HttpError) as raised:
        RequestHeadReader(ROUTER, HttpLimits()).read(
            head(first=f"GET /v2/models/{'a' * 9000} HTTP/1.1")
        )
    assert raised.value.status == 414
