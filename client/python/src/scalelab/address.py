"""Finds the address of the server and the user's credentials by the rules of the command-line client.

The address is the first of these that is set: the argument; SCALELAB_SERVER; `server:` in $XDG_CONFIG_HOME/scalelab/config;
`server:` in scalelab/config of a directory in XDG_CONFIG_DIRS; the socket of the user's own service.
"""
from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import re
import socket
import ssl

from scalelab.errors import invalid

_LONGEST_SOCKET_PATH = 107  # size of sockaddr_un.sun_path without the terminating zero


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """An address and what a connection to it needs.

    Attributes:
        text: the address for users: "unix:PATH", "HOST:PORT" or "insecure:HOST:PORT".
        target: the address in the syntax of gRPC.
        socket_path: the path of the Unix socket; empty for TCP.
        encrypted: whether the connection is TCP with TLS.
        certificate: the certificate that `scalelab login` has accepted, PEM; empty means the authorities of the system.
        token_file: the file of a personal token; empty means none.
    """

    text: str
    target: str
    socket_path: str
    encrypted: bool
    certificate: str
    token_file: str


def resolve(server: str | None, token_file: str | None) -> ServerOptions:
    """Returns the address and credentials to use. Raises ScalelabError, which names the source, for an invalid value."""
    config = _read_configs()
    socket = os.path.join(_xdg("XDG_DATA_HOME", ".local/share"), "scalelab", "scalelab.sock")
    text = server or os.environ.get("SCALELAB_SERVER") or config.get("server") or "unix:" + socket
    file = token_file or os.environ.get("SCALELAB_TOKEN_FILE") or config.get("token_file") or ""
    if text.startswith("unix:"):
        path = text[5:]
        path = path[2:] if path.startswith("//") else path
        if not path:
            raise invalid("the server address 'unix:' has no socket path: write unix:PATH")
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            raise invalid(f"the socket path {path} has more than {_LONGEST_SOCKET_PATH} bytes: use a shorter or a relative path")
        return ServerOptions(text, "unix:" + path, path, False, "", file)
    encrypted = not text.startswith("insecure:")
    host_and_port = text[0 if encrypted else len("insecure:") :]
    found = re.fullmatch(r"[^/ ]+:(\d+)", host_and_port)
    if not found or not 0 < int(found.group(1)) < 65536:
        raise invalid(f"the server address '{text}' is neither unix:PATH nor HOST:PORT")
    certificate = known_certificates().get(text, "") if encrypted else ""
    return ServerOptions(text, "dns:///" + host_and_port, "", encrypted, certificate, file)


def read_token(path: str) -> str:
    """Returns the first line of a token file."""
    try:
        with open(path, encoding="utf-8") as file:
            token = file.readline().strip()
    except OSError:
        token = ""
    if not token:
        raise invalid(f"cannot read a token from {path}: set token_file or SCALELAB_TOKEN_FILE to a file with a token, which "
                      "`scalelab token create` prints")
    return token


def known_certificates() -> dict[str, str]:
    """Returns the certificates that `scalelab login` has stored, by address."""
    path = os.path.join(_xdg("XDG_CONFIG_HOME", ".config"), "scalelab", "known_servers")
    known: dict[str, str] = {}
    if not os.path.exists(path):
        return known
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words:
                continue
            try:
                known[words[0]] = base64.b64decode(words[1], validate=True).decode("ascii") if len(words) == 2 else ""
            except ValueError:
                known[words[0]] = ""
            if "BEGIN CERTIFICATE" not in known[words[0]]:
                raise invalid(f'{path}:{number}: the line is not "HOST:PORT CERTIFICATE": remove it, and run `scalelab login`')
    return known


def host_of(certificate: str) -> str:
    """Returns the first host name or IPv4 address in the subjectAltName of the first certificate of a PEM text. Returns "" if
    there is none, for example in the certificate of an authority."""
    der = _der(certificate)
    at = der.find(b"\x06\x03\x55\x1d\x11")  # the identifier of subjectAltName, 2.5.29.17
    if at < 0:
        return ""
    at += 5
    if der[at : at + 3] == b"\x01\x01\xff":  # critical
        at += 3
    for _ in range(2):  # an octet string that contains a sequence
        at, size = _length(der, at + 1)
    end = at + size
    while at < end:
        kind = der[at]
        at, size = _length(der, at + 1)
        name = der[at : at + size]
        if kind == 0x82:
            return name.decode("ascii", "replace")
        if kind == 0x87 and size == 4:
            return ".".join(map(str, name))
        at += size
    return ""


def fingerprint_of(certificate: str) -> str:
    """Returns the SHA-256 of the first certificate of a PEM text, as hexadecimal digits."""
    return hashlib.sha256(_der(certificate)).hexdigest()


def presented_certificate(text: str, timeout: float) -> str:
    """Returns the certificate that the server at HOST:PORT presents, PEM. Raises OSError if there is no such server, or if no
    authority that gRPC and the system trust has signed the certificate for this host."""
    host, port = text.rsplit(":", 1)
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"))
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout) as plain, context.wrap_socket(plain, server_hostname=host) as encrypted:
        return ssl.DER_cert_to_PEM_cert(encrypted.getpeercert(binary_form=True) or b"")


def _der(certificate: str) -> bytes:
    """Returns the first certificate of a PEM text in binary form; b"" if there is none."""
    body = re.search(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", certificate, re.DOTALL)
    return base64.b64decode(body.group(1)) if body else b""


def _length(der: bytes, at: int) -> tuple[int, int]:
    """Returns the position after the length at `at`, and the length."""
    first = der[at]
    if first < 128:
        return at + 1, first
    count = first & 127
    return at + 1 + count, int.from_bytes(der[at + 1 : at + 1 + count], "big")


def _xdg(variable: str, below_home: str) -> str:
    return os.environ.get(variable) or os.path.join(os.environ.get("HOME", ""), below_home)


def _read_configs() -> dict[str, str]:
    values: dict[str, str] = {}
    directories = [_xdg("XDG_CONFIG_HOME", ".config"), *(os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    for directory in directories:
        path = os.path.join(directory, "scalelab", "config")
        if directory and os.path.exists(path):
            values = {**_read_config(path), **values}
    return values


def _read_config(path: str) -> dict[str, str]:
    values: dict[str, str] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.split("#")[0].strip()
            found = re.fullmatch(r"(server|token_file)\s*[:=]\s*(.*)", text)
            if re.match(r"notify\s*[:=]", text):
                continue  # only `scalelab study submit` uses it
            if found:
                value = found.group(2)
                values[found.group(1)] = value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else value
            elif text:
                raise invalid(f"{path}:{number}: '{text}' is not a setting: write \"server: ADDRESS\" or \"token_file: PATH\"")
    return values
