"""Certificates for tests, made by the openssl command."""

import subprocess
from pathlib import Path

from interlace.server.tls import TlsFiles

_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Authority:
    """An authority of its own, and the certificates that it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.cert, self._key = folder / "ca.crt", folder / "ca.key"
        _openssl(self.cert, self._key, "/CN=authority", "basicConstraints=critical,CA:TRUE")

    def issue(self, name: str, *hosts: str) -> TlsFiles:
        """A certificate for those hosts, 127.0.0.1 unless they are named; again: another one."""
        files = TlsFiles(self._folder / f"{name}.crt", self._folder / f"{name}.key", self.cert)
        assert files.cert is not None and files.key is not None
        signed = ("-CA", str(self.cert), "-CAkey", str(self._key))
        named = ",".join(f"DNS:{host}" for host in hosts) or "IP:127.0.0.1"
        _openssl(files.cert, files.key, f"/CN={name}", f"subjectAltName={named}", *signed)
        return files


def _openssl(cert: Path, key: Path, subject: str, extension: str, *more: str) -> None:
    argv = ["openssl", "req", "-x509", *_NEW, "-keyout", str(key), "-out", str(cert)]
    argv += ["-subj", subject, "-addext", extension, *more]
    subprocess.run(argv, check=True, capture_output=True)
