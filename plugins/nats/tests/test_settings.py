"""URLs, logins and TLS: understood or refused, and never shown."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ruststream_core.errors import ConfigError, ConnectError, Unsupported
from ruststream_core.plugins import broker_from_url
from ruststream_core.testing.servers import Authority, NatsServer
from ruststream_core_nats import CoreSubject, JetStream, JetStreamPublish, KeyValueWatch, NATSBroker

SECRET = "hunter2%40x"


def test_the_scheme_leads_here() -> None:
    """`App(broker="nats://…")` would ask for a plugin that is installed."""
    assert isinstance(broker_from_url("nats://localhost:4222"), NATSBroker)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("nats://localhost", "localhost:4222"),
        ("nats://", "localhost:4222"),
        ("nats://one:1,two:2", "one:1,two:2"),
        ("nats://anna:pw@one,two:4223/?name=orders&heartbeat=5&reconnects=3&internals=false", "one:4222,two:4223"),
        ("tls://token@one", "one:4222"),
        ("nats://[::1]:4222", "::1:4222"),
    ],
)
def test_urls(url: str, hosts: str) -> None:
    """A URL that is understood otherwise connects elsewhere."""
    assert NATSBroker.from_url(url).describe().host == hosts


@pytest.mark.parametrize(
    "url",
    [
        f"nats://anna:{SECRET}@one/path",
        f"nats://anna:{SECRET}@one,berta:{SECRET}@two",
        f"nats://anna:{SECRET}@one?nonsense=1",
        f"nats://anna:{SECRET}@one?heartbeat=soon",
        f"nats://anna:{SECRET}@one?heartbeat=1&heartbeat=2",
        f"nats://anna:{SECRET}@one?tls_first=maybe",
        f"nats://anna:{SECRET}@one?token=other",
        f"nats://anna:{SECRET}@one:port",
        f"nats://anna:{SECRET}@one?heartbeat=0",
        "http://one",
    ],
)
def test_a_url_that_is_not_understood_shows_no_secret(url: str) -> None:
    """A setting with a typing error would be ignored; an error with a password in it is a leak."""
    with pytest.raises(ConfigError) as caught:
        NATSBroker.from_url(url)
    assert "hunter2" not in str(caught.value)


def test_settings_hide_what_is_secret() -> None:
    """Logs and documents print brokers."""
    broker = NATSBroker("nats://one", user="anna", password="hunter2")
    assert "hunter2" not in f"{broker!r}{broker}{broker.describe()}{broker._settings!r}"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(broker)


@pytest.mark.parametrize(
    "settings",
    [
        {"servers": []},
        {"servers": ["nats://one", "ws://two"]},
        {"servers": "ftp://one"},
        {"user": "anna"},
        {"user": "anna", "password": "x", "token": "y"},
        {"servers": "nats://anna:x@one", "token": "y"},
        {"servers": ["nats://anna:x@one", "nats://anna:y@two"]},
        {"tls_cert": "a.pem"},
        {"reconnects": -1},
        {"heartbeat": 0},
        {"buffer": 0},
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(settings: dict[str, Any]) -> None:
    """They would be found out by the server, or not at all."""
    with pytest.raises(ConfigError, match="NATS"):
        NATSBroker(**settings)


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        (JetStream("a", stream="a.b"), "stream"),
        (JetStream("a", durable="a b"), "durable"),
        (JetStream("a", ack_wait=0), "ack_wait"),
        (JetStream("a", max_deliver=0), "max_deliver"),
        (JetStream("a", heartbeat=20.0), "heartbeat"),
        (JetStream("a", deliver_policy="by_start_sequence"), "start_sequence"),
        (JetStream("a", start_sequence=1), "start_sequence"),
        (JetStream("a", deliver_policy="nonsense"), "deliver_policy"),  # type: ignore[arg-type]
        (JetStream("a", ordered=True, durable="d", ack_wait=1), "durable, ack_wait"),
        (JetStream("a", window=0), "window"),
        (JetStream("a.{x"), "placeholder"),
        (CoreSubject("a", queue_group="a b"), "queue_group"),
        (CoreSubject("a", pending=0), "pending"),
        (KeyValueWatch("a.b"), "bucket"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sources_are_checked_offline(source: Any, wrong: str) -> None:
    """`check` would call sound what no server takes."""
    with pytest.raises(ConfigError, match=wrong):
        NATSBroker().source(source)


def test_prefixes() -> None:
    """A router's prefix would be lost, or put where it does not belong."""
    assert CoreSubject("a").prefixed("x.").name == "x.a"
    assert JetStream("a.{b}", stream="S").prefixed("x.").filters == ("x.a.*",)
    with pytest.raises(Unsupported):
        JetStream("a.>", filter_subjects=("a.b",)).prefixed("x.")


@pytest.mark.parametrize("way", ["url", "settings"])
async def test_user_and_password(lab: Any, own_server: Callable[..., NatsServer], way: str) -> None:
    """The login would not reach the server; a wrong one would be tried for ever."""
    server = own_server(users={"anna": "p@ss:word/1"})
    plain = f"nats://127.0.0.1:{server.port}"
    if way == "url":
        await lab.connect(server.url)
        connection = await NATSBroker.from_url(server.url).connect()
        await connection.ping()
        await connection.aclose(1.0)
    else:
        await (await lab.connect(plain, user="anna", password="p@ss:word/1")).ping()
    with pytest.raises(ConnectError, match="user 'anna'") as caught:
        await NATSBroker(plain, user="anna", password="wrong-one").connect()
    assert "wrong-one" not in f"{caught.value!r}{caught.value.__cause__!r}"


async def test_token(own_server: Callable[..., NatsServer]) -> None:
    """A token in the URL is no user."""
    server = own_server(token="s3cret")
    connection = await NATSBroker.from_url(server.url).connect()
    await connection.ping()
    await connection.aclose(1.0)
    with pytest.raises(ConnectError):
        await NATSBroker(f"nats://127.0.0.1:{server.port}", token="other").connect()


async def test_nkeys(lab: Any, own_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    """The seed signs what the server asks for, from a file or as it is."""
    nkeys = pytest.importorskip("nkeys")
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    pair = nkeys.from_seed(bytearray(seed))
    server = own_server(nkeys=[pair.public_key.decode()])
    file = tmp_path / "seed.nk"
    file.write_bytes(seed)
    for login in ({"nkey_seed": seed.decode()}, {"nkey_file": file}):
        await (await lab.connect(server.url, **login)).ping()
    with pytest.raises(ConnectError):
        await NATSBroker(server.url).connect()


async def test_missing_files_are_named(tmp_path: Path) -> None:
    """A missing file would look like a refused login."""
    for settings in ({"credentials": tmp_path / "no.creds"}, {"nkey_file": tmp_path / "no.nk"}):
        with pytest.raises(ConfigError, match=r"no\."):
            await NATSBroker(**settings).connect()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no\.pem"):
        await NATSBroker(tls_ca=tmp_path / "no.pem").connect()


async def test_tls(lab: Any, own_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    """A connection that should be encrypted would not be, or to somebody else."""
    authority = Authority(tmp_path)
    certificate = authority.issue("localhost")
    server = own_server(tls=certificate, verify_clients=True)
    own = {"tls_ca": certificate.ca, "tls_cert": certificate.cert, "tls_key": certificate.key}
    connection, name = await lab.connect(server.url, **own), lab.name("t")
    subscription = await lab.open(connection, name)
    await lab.publish(connection, name, b"x")
    assert await lab.acked(subscription, 1) == [b"x"]
    other = tmp_path / "other"
    other.mkdir()
    for wrong in ({**own, "tls_ca": Authority(other).cert}, {"tls_ca": certificate.ca}):
        with pytest.raises(ConnectError):
            await NATSBroker(server.url, connect_timeout=2.0, **wrong).connect()  # type: ignore[arg-type]


async def test_the_second_server_is_found(lab: Any, server: NatsServer) -> None:
    """One server of several that is down would keep a service from starting."""
    connection = await lab.connect(["nats://127.0.0.1:1", server.url])
    await connection.ping()


def test_options_of_another_transport_are_refused(server: NatsServer) -> None:
    """They would be ignored."""
    from ruststream_core.abc import PublishOptions
    from ruststream_core_nats._publisher import checked_options

    with pytest.raises(ConfigError, match="JetStreamPublish"):
        checked_options(PublishOptions())
    with pytest.raises(ConfigError, match="timeout"):
        checked_options(JetStreamPublish(timeout=0))
