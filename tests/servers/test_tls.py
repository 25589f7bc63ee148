"""Certificates that hold for whom they should, and for nobody else."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from ruststream_core.testing.servers import Authority, Certificate, ServerFailed


async def greet(certificate: Certificate, context: ssl.SSLContext, host: str, *, verify: bool = False) -> bytes:
    """What a client of this context hears from a server with this certificate, of which it asks for `host`."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    ready = certificate.server_context(verify_clients=verify)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=ready) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        try:
            # A server that refuses the client's certificate says so only after the client's side is done.
            return await reader.read() or b"refused"
        except (ssl.SSLError, ConnectionError):
            return b"refused"
        finally:
            writer.transport.abort()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_client_of_the_authority_trusts_its_server(host: str, authority: Authority) -> None:
    assert await greet(authority.issue("server"), authority.client_context(), host) == b"hello"


async def test_a_name_that_is_not_in_the_certificate_is_refused(authority: Authority) -> None:
    certificate = authority.issue("elsewhere", hosts=["elsewhere.test"])
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        await greet(certificate, authority.client_context(), "localhost")
    assert await greet(certificate, authority.client_context(), "elsewhere.test") == b"hello"


async def test_another_authority_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await greet(authority.issue("server"), Authority(tmp_path).client_context(), "localhost")


async def test_a_server_that_asks_gets_the_clients_certificate(authority: Authority) -> None:
    server, client = authority.issue("server"), authority.issue("client")
    assert await greet(server, client.client_context(), "localhost", verify=True) == b"hello"
    assert await greet(server, authority.client_context(), "localhost", verify=True) == b"refused"


def test_what_the_program_says_is_in_the_error(authority: Authority) -> None:
    with pytest.raises(ServerFailed, match="(?s)openssl x509 failed:.*"):
        authority.issue("bad", hosts=["\n=broken"])
