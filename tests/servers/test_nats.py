"""The oldest and the newest NATS server, and the settings that tests of a transport need."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import pytest

from ruststream_core.errors import Closed
from ruststream_core.testing.servers import Authority, NatsServer, ServerFailed

Start = Callable[[NatsServer], NatsServer]
Version = Literal["debian", "newest"]

# A cold cache builds the newest version first.
pytestmark = pytest.mark.timeout(900)


class Client:
    """As much of the protocol as shows what a server was told."""

    def __init__(self, server: NatsServer, **connect: Any) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=20.0)
        self.file = self.sock.makefile("rb")
        self.info = json.loads(self.line().removeprefix(b"INFO "))
        self.send(b"CONNECT " + json.dumps({"verbose": False, "headers": True, **connect}).encode())
        self.send(b"PING")
        self.answer = self.line()

    def send(self, line: bytes) -> None:
        self.sock.sendall(line + b"\r\n")

    def line(self) -> bytes:
        """The next line that is no notice of the server's own."""
        while True:
            line = self.file.readline().rstrip()
            if not line.startswith(b"INFO ") or not hasattr(self, "info"):
                return line

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        """A request to JetStream's own service."""
        payload = json.dumps(body).encode() if body is not None else b""
        self.send(b"SUB answers 1")
        self.send(b"PUB %s answers %d\r\n%s" % (subject.encode(), len(payload), payload))
        assert self.line().startswith(b"MSG answers 1 ")
        found: dict[str, Any] = json.loads(self.file.readline())
        self.send(b"UNSUB 1")
        return found

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


STREAM = {"name": "KEPT", "subjects": ["kept.*"], "storage": "file"}


@pytest.mark.parametrize(("version", "expected"), [("debian", "2."), ("newest", "2.15.3")])
def test_the_version_asked_for_answers(version: Version, expected: str, started: Start) -> None:
    with Client(started(NatsServer(version))) as client:
        assert client.info["version"].startswith(expected)
        assert client.info["jetstream"] is True
        assert client.answer == b"PONG"


@pytest.mark.parametrize("version", ["debian", "newest"])
def test_streams_are_kept_over_a_kill_and_a_restart(version: Version, started: Start) -> None:
    server = started(NatsServer(version))
    url = server.url
    with Client(server) as client:
        assert "error" not in client.request("$JS.API.STREAM.CREATE.KEPT", STREAM)
        assert client.request("kept.one", {"number": 1})["seq"] == 1
    server.kill()
    server.start()
    with Client(server) as client:
        assert client.request("kept.two", {"number": 2})["seq"] == 2
    server.restart()
    with Client(server) as client:
        assert client.request("$JS.API.STREAM.INFO.KEPT")["state"]["messages"] == 2
    assert server.url == url


@pytest.mark.parametrize("version", ["debian", "newest"])
def test_a_paused_server_answers_after_it_is_resumed(version: Version, started: Start) -> None:
    server = started(NatsServer(version))
    with Client(server) as client:
        server.pause()
        client.send(b"PING")
        client.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.sock.recv(1, socket.MSG_PEEK)
        server.resume()
        client.sock.settimeout(20.0)
        assert client.sock.recv(6) == b"PONG\r\n"


def test_what_the_server_knows_of_its_clients_can_be_read(started: Start) -> None:
    server = started(NatsServer())
    with Client(server, name="the test's own") as client:
        known = {one["name"]: one["cid"] for one in server.monitor("connz", subs=1)["connections"]}
        assert known["the test's own"] == client.info["client_id"]


def test_without_jetstream_there_is_none(started: Start) -> None:
    with Client(started(NatsServer(jetstream=False))) as client:
        assert "jetstream" not in client.info


def test_the_largest_payload_is_the_one_asked_for(started: Start) -> None:
    with Client(started(NatsServer(max_payload=4096, extra={"max_connections": 7}))) as client:
        assert client.info["max_payload"] == 4096
        client.send(b"PUB x 5000")
        assert client.line() == b"-ERR 'Maximum Payload Violation'"


def test_users_and_tokens_are_asked_for_and_in_the_url(started: Start) -> None:
    server = started(NatsServer(users={"ann": "p@ss", "bob": "word"}))
    assert server.url == f"nats://ann:p%40ss@127.0.0.1:{server.port}"
    with Client(server, user="bob", **{"pass": "word"}) as known, Client(server) as unknown:
        assert known.answer == b"PONG"
        assert unknown.answer == b"-ERR 'Authorization Violation'"
    server = started(NatsServer(token="s3cret"))
    assert server.url == f"nats://s3cret@127.0.0.1:{server.port}"
    with Client(server, auth_token="s3cret") as known, Client(server, auth_token="other") as unknown:
        assert known.answer == b"PONG"
        assert unknown.answer == b"-ERR 'Authorization Violation'"


def test_a_key_gets_a_nonce_to_sign(started: Start) -> None:
    key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    with Client(started(NatsServer(nkeys=[key]))) as client:
        assert client.info["nonce"]
        assert client.answer == b"-ERR 'Authorization Violation'"


@pytest.mark.parametrize("version", ["debian", "newest"])
def test_a_reload_revokes_credentials_of_connected_clients(version: Version, started: Start) -> None:
    server = started(NatsServer(version, users={"ann": "one", "bob": "two"}))
    with Client(server, user="ann", **{"pass": "one"}) as ann, Client(server, user="bob", **{"pass": "two"}) as bob:
        server.reload(users={"bob": "two"})
        assert ann.line() == b"-ERR 'Authorization Violation'" or ann.line() == b""
        bob.send(b"PING")
        assert bob.line() == b"PONG"
    assert server.url.startswith("nats://bob:two@")


def test_a_reload_that_the_server_refuses_is_told_and_undone(started: Start) -> None:
    server = started(NatsServer(max_payload=4096))
    with pytest.raises(ServerFailed, match="Failed to reload"):
        server.reload(extra={"server_name": "another"})
    server.reload(max_payload=8192)
    with Client(server) as client:
        assert client.info["max_payload"] == 8192
    server.stop()
    with pytest.raises(Closed):
        server.reload(max_payload=1)


@pytest.mark.parametrize("users", [{}, {"ann": "one"}])
def test_the_limits_of_an_account_are_kept(users: dict[str, str], started: Start) -> None:
    server = started(NatsServer(users=users, max_streams=1, max_storage=10_000))
    credentials = {"user": "ann", "pass": "one"} if users else {}
    with Client(server, **credentials) as client:
        assert "error" not in client.request("$JS.API.STREAM.CREATE.KEPT", STREAM)
        refused = client.request("$JS.API.STREAM.CREATE.MORE", {**STREAM, "name": "MORE", "subjects": ["more"]})
        assert "maximum number of streams reached" in refused["error"]["description"]
        assert client.request("$JS.API.INFO")["limits"]["max_storage"] == 10_000


@pytest.mark.parametrize("verify", [False, True])
async def test_tls_with_and_without_a_certificate_of_the_client(verify: bool, started: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("server")
    server = await asyncio.to_thread(started, NatsServer(tls=certificate, verify_clients=verify))
    assert await _handshake(server, authority.issue("client").client_context()) == b"PONG\r\n"
    if verify:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _handshake(server, authority.client_context())
    else:
        assert await _handshake(server, authority.client_context()) == b"PONG\r\n"


async def _handshake(server: NatsServer, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        assert json.loads((await reader.readline()).removeprefix(b"INFO "))["tls_required"] is True
        await writer.start_tls(context, server_hostname="localhost")
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        answer = await reader.readline()
        if not answer:
            raise ConnectionResetError
        return answer
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("options", [{"max_payload": 4096}, {"jetstream": False}])
def test_a_server_that_runs_already_is_not_taken_for_one_with_other_settings(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUSTSTREAM_TEST_NATS_URL", "nats://elsewhere:4222")
    assert NatsServer().external
    assert NatsServer().url == "nats://elsewhere:4222"
    assert not NatsServer(**options).external
