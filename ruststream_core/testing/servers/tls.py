"""A certificate authority for one test, made by the `openssl` program."""

from __future__ import annotations

import ipaddress
import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ruststream_core.testing.servers._errors import ServerFailed
from ruststream_core.testing.servers._programs import find_program

__all__ = ["Authority", "Certificate"]

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_DAYS = "2"
_SECONDS = 30.0


@dataclass(frozen=True)
class Certificate:
    """Paths of a certificate, its private key and the certificate of the authority that signed it, all in PEM."""

    cert: Path
    key: Path
    ca: Path

    def server_context(self, *, verify_clients: bool = False) -> ssl.SSLContext:
        """The side that shows this certificate, and asks for one of the same authority if told so."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        context.load_cert_chain(self.cert, self.key)
        context.verify_mode = ssl.CERT_REQUIRED if verify_clients else ssl.CERT_NONE
        return context

    def client_context(self) -> ssl.SSLContext:
        """A client that trusts this authority alone and shows this certificate when asked."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.cert, self.key)
        return context


class Authority:
    """Signs certificates that are valid for two days. Two authorities do not trust each other's."""

    def __init__(self, folder: str | Path) -> None:
        """Create the authority's key and certificate in a folder, which must exist.

        Raises:
            ServerMissing: The program `openssl` is not installed.
            ServerFailed: It failed; the message ends with what it said.
        """
        self._openssl = find_program("openssl", install="install the system's package openssl")
        self._folder = Path(folder)
        self.cert = self._folder / "ca.pem"
        self._key = self._folder / "ca.key"
        self._call("req", "-x509", *_NEW_KEY, "-days", _DAYS, "-subj", "/CN=test authority", "-addext",
                   "keyUsage=critical,keyCertSign,cRLSign", "-keyout", self._key, "-out", self.cert)  # fmt: skip

    def issue(self, name: str, hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> Certificate:
        """Sign a certificate that serves as a server's and as a client's.

        Args:
            name: The common name, and the name of the files.
            hosts: The names and addresses for which it holds.

        Raises:
            ServerFailed: `openssl` failed; the message ends with what it said.
        """
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self._call("req", "-new", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        extensions.write_text(
            f"subjectAltName={','.join(map(_alternative, hosts))}\n"
            "basicConstraints=critical,CA:FALSE\n"
            "extendedKeyUsage=serverAuth,clientAuth\n"
            "authorityKeyIdentifier=keyid\n"
        )
        self._call("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial",
                   "-days", _DAYS, "-extfile", extensions, "-out", cert)  # fmt: skip
        return Certificate(cert, key, self.cert)

    def client_context(self) -> ssl.SSLContext:
        """A client that trusts this authority alone and has no certificate to show."""
        return ssl.create_default_context(cafile=str(self.cert))

    def _call(self, *arguments: str | Path) -> None:
        command = [self._openssl, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode != 0:
            raise ServerFailed(f"openssl {arguments[0]} failed:\n{done.stderr[-2000:]}")


def _alternative(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"
