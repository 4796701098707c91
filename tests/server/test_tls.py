"""TLS of the listeners: who gets through, who does not and why, and files that change."""

import logging
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException as Refused

from interlace.core.user_errors import InputError
from interlace.server import tls as tls_module
from interlace.server.grpc import epoll_loop
from interlace.server.http import server as http_server
from interlace.server.limits import GrpcLimits, HttpLimits
from interlace.server.tls import GRPC, HTTP, TlsFiles
from tests.server.certificates import Authority
from tests.server.fakes import one_to_one, wait_until
from tests.server.grpc.fakes import Main
from tests.server.grpc.test_clients import numbers, tensor
from tests.server.stand import Stand
from tests.server.wire import Reader, binary_outputs, infer, request

LIVE = request("GET", "/v2/health/live")


@pytest.fixture(autouse=True)
def _files_are_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_module, "_LOOK_S", 0.1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return authority.issue("server")


@pytest.fixture(scope="module")
def web(files: TlsFiles) -> Iterator[Stand]:
    stand = Stand(tls=files.listener(HTTP))
    stand.publish(one_to_one("ident"))
    yield stand
    stand.close()


@pytest.fixture(scope="module")
def echo(files: TlsFiles) -> Iterator[Main]:
    with Main(tls=files.listener(GRPC)) as main:
        yield main


def over_tls(stand: Stand, trusted: TlsFiles, name: str = "127.0.0.1") -> ssl.SSLSocket:
    context = trusted.client(HTTP).now()
    context.sslsocket_class = ssl.SSLSocket  # this one blocks
    return context.wrap_socket(stand.connect(), server_hostname=name)


def channel(main: Main, trusted: TlsFiles, mutual: bool = False) -> triton.InferenceServerClient:
    assert trusted.ca is not None and trusted.cert is not None and trusted.key is not None
    own = {"private_key": str(trusted.key), "certificate_chain": str(trusted.cert)}
    return triton.InferenceServerClient(
        main.target, ssl=True, root_certificates=str(trusted.ca), **(own if mutual else {})
    )


@pytest.mark.parametrize("size", [4, 16_000, 150_528, 3_000_000])
def test_any_size_goes_both_ways_over_http(web: Stand, files: TlsFiles, size: int) -> None:
    value = np.random.default_rng(1).random((1, size), dtype=np.float32)
    with over_tls(web, files) as connection:
        reader = Reader(connection)
        assert connection.selected_alpn_protocol() == "http/1.1"
        for _ in range(3):
            connection.sendall(infer("ident", value))
            reply = reader.response()
            assert reply.status == 200, reply.body
            (output,) = binary_outputs(reply).values()
            assert output == value.tobytes()
    wait_until(lambda: web.used_bytes == 0)


def test_a_reply_stays_in_the_arena_until_its_reader_has_it(web: Stand, files: TlsFiles) -> None:
    value = np.random.default_rng(2).random((1, 8_000_000), dtype=np.float32)
    with over_tls(web, files) as connection:
        connection.sendall(infer("ident", value))
        time.sleep(0.5)
        assert web.used_bytes >= value.nbytes, "not copied to a heap without bound"
        got = bytearray()
        while len(got) < value.nbytes or not got.endswith(value[0, -16:].tobytes()):
            got += connection.recv(1 << 20)
        assert got.endswith(value.tobytes())
    wait_until(lambda: web.used_bytes == 0)


@pytest.mark.parametrize("size", [0, 1, 4090, 16_000, 70_000, 150_528, 3_000_000])
def test_any_size_goes_both_ways_over_grpc(echo: Main, files: TlsFiles, size: int) -> None:
    value = numbers(1, size)
    with channel(echo, files) as client:
        for _ in range(3):
            result = client.infer("echo", [tensor(value)])
            assert np.array_equal(result.as_numpy("OUTPUT"), value)
    echo.settled()


def test_many_calls_share_a_connection(echo: Main, files: TlsFiles) -> None:
    value = numbers(1, 40_000)
    with channel(echo, files) as client:
        done: list[bool] = []

        def check(result: triton.InferResult | None, error: Exception | None) -> None:
            done.append(result is not None and np.array_equal(result.as_numpy("OUTPUT"), value))

        for _ in range(64):
            client.async_infer("slow-5", [tensor(value)], check)
        wait_until(lambda: len(done) == 64)
    assert all(done)
    echo.settled()


def test_a_server_of_another_authority_is_not_believed(
    web: Stand, echo: Main, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other").issue("client")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|unable to get"):
        over_tls(web, other)
    with (
        channel(echo, other) as client,
        pytest.raises(Refused, match="failed to connect"),
    ):
        client.is_server_live()


def test_a_server_of_another_name_is_not_believed(web: Stand, files: TlsFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"):
        over_tls(web, files, "elsewhere")


def test_clear_text_is_refused_and_the_log_says_so(
    web: Stand, echo: Main, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "_LOG_S", 0.0)  # others were refused just now
    with caplog.at_level(logging.WARNING, "interlace.server.tls"):
        with web.connect() as connection:
            connection.sendall(LIVE)
            assert Reader(connection).at_end()
        with (
            triton.InferenceServerClient(echo.target) as client,
            pytest.raises(Refused),
        ):
            client.is_server_live()
        wait_until(lambda: "gRPC: no TLS with" in caplog.text)
    assert "HTTP: no TLS with 127.0.0.1:" in caplog.text
    assert caplog.text.count("it sent clear text, and this port takes TLS alone") >= 2


def test_probes_of_an_open_port_are_not_logged(
    web: Stand, echo: Main, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "_LOG_S", 0.0)
    for port in (web.port, echo.port):
        socket.create_connection(("127.0.0.1", port)).close()
        with socket.create_connection(("127.0.0.1", port)) as reset:
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    time.sleep(0.2)
    assert "no TLS with" not in caplog.text


def test_with_an_authority_callers_need_a_certificate_of_it(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = replace(files, cert=None, key=None)
    with Stand(tls=files.listener(HTTP, mutual=True)) as stand:
        with over_tls(stand, files) as connection:
            connection.sendall(LIVE)
            assert Reader(connection).response().status == 200
        with over_tls(stand, unknown) as nobody:
            assert Reader(nobody).at_end()
        wait_until(lambda: "peer did not return a certificate" in caplog.text)
    with Main(tls=files.listener(GRPC, mutual=True)) as main:
        with channel(main, files, mutual=True) as client:
            assert client.is_server_live()
        with channel(main, files) as client, pytest.raises(Refused):
            client.is_server_live()


def serial(address: tuple[str, int], files: TlsFiles) -> str:
    context = TlsFiles(ca=files.ca).client(HTTP).now()
    with (
        socket.create_connection(address) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as connection,
    ):
        found = connection.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


def test_new_connections_see_a_new_certificate_and_old_ones_go_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = authority.issue("server")
    with (
        Stand(tls=files.listener(HTTP)) as stand,
        Main(tls=files.listener(GRPC)) as main,
        over_tls(stand, files) as old,
    ):
        ports = [("127.0.0.1", stand.port), ("127.0.0.1", main.port)]
        before = [serial(port, files) for port in ports]
        assert files.cert is not None
        whole = files.cert.read_bytes()
        files.cert.write_bytes(b"half of a certifi")  # they are written one after another
        time.sleep(0.15)
        assert [serial(port, files) for port in ports] == before
        files.cert.write_bytes(whole)
        authority.issue("server")
        wait_until(lambda: all(serial(port, files) not in before for port in ports))
        old.sendall(LIVE)
        assert Reader(old).response().status == 200


def test_an_authority_that_is_replaced_is_trusted_no_more(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    before, after = old.issue("client"), new.issue("client")
    assert before.ca is not None and after.ca is not None
    listener = old.issue("server").listener(HTTP, mutual=True)
    with Stand(tls=listener) as stand:

        def served(cert: TlsFiles) -> bool:
            with over_tls(stand, replace(cert, ca=tmp_path / "server.ca")) as connection:
                connection.sendall(LIVE)
                return not Reader(connection).at_end()

        (tmp_path / "server.ca").write_bytes(before.ca.read_bytes())
        assert (served(before), served(after)) == (True, False)
        before.ca.write_bytes(after.ca.read_bytes())
        wait_until(lambda: served(after))
        assert not served(before)


def test_a_client_trusts_no_authority_that_was_replaced(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    with Stand(tls=old.issue("server").listener(HTTP)) as stand:
        trusted = tmp_path / "trusted"
        trusted.write_bytes(old.cert.read_bytes())
        context = TlsFiles(ca=trusted).client(HTTP)

        def call() -> None:
            blocking = context.now()
            blocking.sslsocket_class = ssl.SSLSocket
            blocking.wrap_socket(stand.connect(), server_hostname="127.0.0.1").close()

        call()
        trusted.write_bytes(new.cert.read_bytes())
        time.sleep(0.15)
        with pytest.raises(ssl.SSLCertVerificationError):
            call()


def test_handshakes_that_stall_end_and_hold_nobody_up(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(epoll_loop, "HANDSHAKE_S", 0.5)
    with Stand(tls=files.listener(HTTP)) as stand, Main(tls=files.listener(GRPC)) as main:
        for port in (stand.port, main.port):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
                used_s = time.process_time()
                assert serial(("127.0.0.1", port), files)
                assert silent.recv(1) == b"", "it was closed"
                assert time.process_time() - used_s < 0.4, "it was waited for, not spun"
        assert main.server.connections == 0
    assert caplog.text.count("no handshake within") == 2


def test_a_flood_of_handshakes_is_bounded_and_passed_by(files: TlsFiles) -> None:
    with (
        Stand(HttpLimits(connections=16), tls=files.listener(HTTP)) as stand,
        Main(tls=files.listener(GRPC), limits=GrpcLimits(max_connections=16)) as main,
    ):
        for port in (stand.port, main.port):
            flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]
            assert serial(("127.0.0.1", port), files)
            closed = 0
            for one in flood:
                one.settimeout(0.05)
                try:
                    closed += one.recv(1) == b""
                except TimeoutError:
                    pass
                except ConnectionError:
                    closed += 1
                one.close()
            assert closed >= 48


def test_files_that_cannot_be_used_are_named(files: TlsFiles, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give both"):
        TlsFiles(cert=files.cert)
    with pytest.raises(InputError, match=r"none\.crt"):
        TlsFiles(tmp_path / "none.crt", files.key).listener(HTTP)
    foreign = Authority(tmp_path / "other").issue("server")
    with pytest.raises(InputError, match=r"server\.crt"):
        TlsFiles(files.cert, foreign.key).listener(HTTP)
    with pytest.raises(InputError, match=r"server\.key"):
        TlsFiles(ca=files.key).client(HTTP)
