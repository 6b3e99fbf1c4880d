"""Session tokens. A server of the same cluster issues them in exchange for a MUNGE credential.

They are stored in $XDG_RUNTIME_DIR/scalelab, or in $XDG_CACHE_HOME/scalelab if XDG_RUNTIME_DIR is not set. The command-line
client uses the same files.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import re
import stat
import time
from typing import Any, Callable, NamedTuple

from scalelab import address
from scalelab.errors import ScalelabError

_SOCKET_OPTION = 8  # MUNGE_OPT_SOCKET of munge.h
_SHORT_LIFE = 600  # assumed lifetime in seconds, if the server does not send the time of expiry
_CHALLENGE = re.compile("scalelab-login-1:[0-9]{1,18}:[0-9a-f]{32}:[0-9a-f]{64}")


class SessionToken(NamedTuple):
    secret: str
    expires: float  # in seconds since the epoch

    @property
    def usable(self) -> bool:
        """Whether the token will be valid for some time."""
        return self.expires > time.time() + 30


def stored(server: str) -> SessionToken | None:
    """Returns the stored token of a server; None if there is none or it expires soon."""
    path = _file_of(server)
    with contextlib.suppress(OSError, ValueError):
        found = os.stat(path)
        if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
            with open(path, encoding="utf-8") as file:
                expires, secret = int(file.readline()), file.readline().strip()
            token = SessionToken(secret, expires)
            return token if secret and token.usable else None
    return None


def create(server: str, auth: Any, certificate: str, call: Callable[[Any, Any], Any]) -> SessionToken | None:
    """Gets a new token and stores it. Returns None if MUNGE is not available. `auth` is a stub of AuthService whose channel
    trusts only `certificate` (PEM). Raises ScalelabError if the server sends anything else than a challenge."""
    from scalelab.v1 import auth_pb2

    challenge = call(auth.CreateChallenge, auth_pb2.CreateChallengeRequest()).challenge
    credential = _encode(login_text(challenge, certificate).encode())
    if not credential:
        return None
    session = call(auth.CreateSession, auth_pb2.CreateSessionRequest(munge_credential=credential))
    expires = session.identity.expire_time.seconds if session.identity.HasField("expire_time") else int(time.time()) + _SHORT_LIFE
    _store(server, session.token, expires)
    return SessionToken(session.token, expires)


def login_text(challenge: str, certificate: str) -> str:
    """Returns the text that MUNGE encodes: the challenge, and the SHA-256 of the certificate of the server. With another
    certificate the server refuses it, so another server cannot pass on the challenge. munge/login_text.h describes the text."""
    if not _CHALLENGE.fullmatch(challenge):
        raise ScalelabError("the server sends a challenge that is not one of scalelabd, so this client does not sign it; ask the "
                            "operator of the server, or log in with a token", "FAILED_PRECONDITION")
    return challenge + ":" + address.fingerprint_of(certificate)


def _encode(payload: bytes) -> str:
    """Returns a MUNGE credential, or "" if libmunge is not installed or munged does not respond."""
    try:
        munge = ctypes.CDLL("libmunge.so.2")
    except OSError:
        return ""
    munge.munge_ctx_create.restype = ctypes.c_void_p
    context = ctypes.c_void_p(munge.munge_ctx_create())
    credential = ctypes.c_char_p()
    try:
        socket = os.environ.get("SCALELAB_MUNGE_SOCKET")
        if socket:
            munge.munge_ctx_set(context, _SOCKET_OPTION, ctypes.c_char_p(os.fsencode(socket)))
        failed = munge.munge_encode(ctypes.byref(credential), context, payload, len(payload))
        return "" if failed or credential.value is None else credential.value.decode("ascii")
    finally:
        ctypes.CDLL(None).free(credential)
        munge.munge_ctx_destroy(context)


def _file_of(server: str) -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", ""), ".cache")
    return os.path.join(runtime or cache, "scalelab", "session-" + server)


def _store(server: str, secret: str, expires: int) -> None:
    """Stores a token. If that fails, only this process uses the token."""
    path = _file_of(server)
    part = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{expires}\n{secret}\n")
        os.replace(part, path)
