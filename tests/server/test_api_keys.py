"""Who may do what: keys, and pages that make a browser ask."""

import hashlib
from collections.abc import Iterator, Mapping

import pytest

from interlace.server.api_keys import Access, ApiKeys
from interlace.server.http.request_head import Origins, loopback
from tests.server.fakes import one_to_one
from tests.server.stand import Stand
from tests.server.wire import exchange, request

LOAD = "/v2/repository/models/ident/load"
INDEX = "/v2/repository/index"


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    """A server without a key on loopback."""
    stand = Stand(origins=Origins(frozenset({"localhost", "my.host"})))
    stand.publish(one_to_one("ident"))
    yield stand
    stand.close()


def status(stand: Stand, method: str, path: str, headers: Mapping[str, str] | None = None) -> int:
    """Host is replaced where it is given, not sent twice."""
    data = request(method, path, headers=headers)
    if headers and "Host" in headers:
        data = data.replace(b"Host: localhost\r\n", b"", 1)
    with stand.connect() as connection:
        return exchange(connection, data).status


def test_a_digest_lets_in_who_has_the_key_and_not_who_has_the_digest() -> None:
    digest = "sha256:" + hashlib.sha256(b"boss").hexdigest()
    for admin in (digest, digest[:7] + digest[7:].upper()):
        keys = ApiKeys("", admin)
        assert keys.refusal(Access.CHANGE, b"boss") is None
        for given in (b"", b"bos", digest.encode(), digest[7:].encode()):
            assert keys.refusal(Access.CHANGE, given) is not None


@pytest.mark.parametrize(
    ("keys", "given", "use", "change", "order"),
    [
        (ApiKeys(), "", True, True, True),
        (ApiKeys(), "any", True, True, True),
        (ApiKeys("key"), "", False, False, False),
        (ApiKeys("key"), "key", True, True, True),
        (ApiKeys("", "root"), "", True, False, False),
        (ApiKeys("", "root"), "root", True, True, True),
        (ApiKeys("key", "root"), "root", True, True, True),
        (ApiKeys("key", "root"), "key", True, False, False),
        (ApiKeys("key", "root"), "other", False, False, False),
        (ApiKeys("key", "root", "peer"), "peer", False, False, True),
        (ApiKeys("key", "root", "peer"), "root", True, True, False),
        (ApiKeys("key", "root", "peer"), "key", True, False, False),
        (ApiKeys("", "root", "peer"), "", True, False, False),
        (ApiKeys("key", "", "peer"), "peer", False, True, True),
        (ApiKeys("", "", "peer"), "", True, False, False),
        (ApiKeys("old\nnew", "root\n"), "new", True, False, False),
        (ApiKeys("old\nnew"), "old", True, True, True),
        (ApiKeys("old\nnew"), "old\nnew", False, False, False),
        (ApiKeys("old\n\nnew"), "", False, False, False),
        (ApiKeys("of words"), "of", False, False, False),
    ],
)
def test_roles_have_keys_of_their_own(
    keys: ApiKeys, given: str, use: bool, change: bool, order: bool
) -> None:
    """Inference, administration, and the processes of a fleet among each other; all may probe."""
    accesses = (Access.PROBE, Access.USE, Access.CHANGE, Access.ORDER)
    found = [keys.refusal(access, given.encode()) is None for access in accesses]
    assert found == [True, use, change, order]
    assert keys.refusal(Access.ORDER, keys.order.encode()) is None


def test_what_changes_the_server_needs_the_admin_key() -> None:
    with Stand(keys=ApiKeys("user", "root")) as stand:
        stand.publish(one_to_one("ident"))
        region = "/v2/systemsharedmemory"
        for path in (LOAD, LOAD.replace("load", "unload"), f"{region}/region/r/register",
                     f"{region}/region/r/unregister", f"{region}/unregister"):  # fmt: skip
            assert status(stand, "POST", path, {"X-Api-Key": "user"}) == 401, path
            assert status(stand, "POST", path, {"X-Api-Key": "root"}) != 401, path
        for key in ("user", "root"):
            assert status(stand, "POST", INDEX, {"Authorization": f"Bearer {key}"}) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example", "Content-Type": "text/plain"},
    ],
)
def test_pages_of_other_origins_cannot_post(stand: Stand, headers: dict[str, str]) -> None:
    calls = len(stand.parts.control.calls)
    for path in (LOAD, INDEX, "/v2/models/ident/infer"):
        assert status(stand, "POST", path, headers) == 403
    assert len(stand.parts.control.calls) == calls


def test_the_servers_own_pages_and_programs_can_post(stand: Stand) -> None:
    for headers in (
        {},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost:80", "Sec-Fetch-Site": "same-origin"},
        {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert status(stand, "POST", INDEX, headers) == 200, headers


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("my.host", 200),
    ],
)
def test_names_that_may_be_rebound_are_refused(stand: Stand, host: str, expected: int) -> None:
    for method, path in (("GET", "/v2/models"), ("GET", "/metrics"), ("POST", INDEX)):
        assert status(stand, method, path, {"Host": host}) == expected


def test_a_key_does_for_both() -> None:
    with Stand(keys=ApiKeys("user"), origins=Origins(frozenset({"localhost"}))) as stand:
        headers = {"Host": "evil.example", "Origin": "https://evil.example"}
        assert status(stand, "POST", INDEX, headers) == 401
        assert status(stand, "POST", INDEX, {**headers, "X-Api-Key": "user"}) == 200


def test_which_addresses_are_this_machine_alone() -> None:
    assert all(map(loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(loopback, ("0.0.0.0", "::", "192.168.1.1", "example.com")))
