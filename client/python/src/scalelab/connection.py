"""The connection to the server: deadlines, retries, credentials, and errors for users."""
from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Iterator

import grpc

from scalelab import address, session_token
from scalelab.errors import ScalelabError, parse_details
from scalelab.v1 import analysis_pb2_grpc, auth_pb2_grpc, result_pb2_grpc, run_pb2_grpc, study_pb2_grpc

_PATIENCE = 60.0  # after this number of seconds without news, a stream is not opened again
_STEADY = 10.0  # a stream that was open for this number of seconds counts as news
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 5.0  # seconds before a stream is opened again
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # By default, gRPC stops its pings after two of them if the client sends no further message. A client that watches a quiet
    # study would then never notice that the server's machine has gone.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
]


class Connection:
    """Calls of one server. Thread-safe. `timeout` in seconds applies to each call."""

    def __init__(self, server: address.ServerOptions, timeout: float) -> None:
        self.server, self.timeout = server, timeout
        self._token = address.read_token(server.token_file) if server.token_file and not server.socket_path else ""
        self._session: session_token.SessionToken | None = None
        self._no_session = ""  # why there is no session token; empty if unknown
        self._lock = threading.Lock()
        if server.encrypted:
            self._channel = _secure_channel(server.target, server.certificate)
        else:
            self._channel = grpc.insecure_channel(server.target, _OPTIONS)
        self.studies = study_pb2_grpc.StudyServiceStub(self._channel)
        self.runs = run_pb2_grpc.RunServiceStub(self._channel)
        self.results = result_pb2_grpc.ResultServiceStub(self._channel)
        self.analysis = analysis_pb2_grpc.AnalysisServiceStub(self._channel)
        self._auth = auth_pb2_grpc.AuthServiceStub(self._channel)
        if not self._connects(min(timeout, 5.0)):
            self.close()
            raise self._unreachable()

    def close(self) -> None:
        self._channel.close()

    def call(self, method: Any, request: Any) -> Any:
        """Makes one unary call. Repeats it until the timeout while the server cannot be reached, so the call must be
        idempotent."""
        deadline = time.monotonic() + self.timeout
        renewed, pause = False, 0.05
        while True:
            try:
                return method(request, timeout=max(0.0, deadline - time.monotonic()), metadata=self._metadata(), wait_for_ready=True)
            except grpc.RpcError as error:
                explained = self.explain(error)
            if explained.code == "UNAUTHENTICATED" and self._renew_session(renewed):
                renewed = True
            elif explained.code != "UNAVAILABLE" or explained.reason or time.monotonic() + pause > deadline:
                raise explained
            else:
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    def call_all(self, method: Any, requests: Iterator[Any], window: int = 32) -> Iterator[Any]:
        """Makes many unary calls, up to `window` of them concurrently. Returns the responses in the order of the requests."""
        pending: list[tuple[Any, Any]] = []
        for request in requests:
            pending.append((request, method.future(request, timeout=self.timeout, metadata=self._metadata())))
            if len(pending) >= window:
                yield self._answer(method, *pending.pop(0))
        while pending:
            yield self._answer(method, *pending.pop(0))

    def stream(self, method: Any, request: Any) -> Iterator[Any]:
        """Returns the messages of a stream that ends by itself."""
        begun = renewed = False
        while True:
            try:
                for message in method(request, metadata=self._metadata()):
                    begun = True
                    yield message
                return
            except grpc.RpcError as error:
                explained = self.explain(error)
            if begun or explained.code != "UNAUTHENTICATED" or not self._renew_session(renewed):
                raise explained
            renewed = True

    def follow(self, method: Any, request: Any, timeout: float | None, over: Callable[[Any], bool],
               state: Callable[[Any], Any]) -> Iterator[Any]:
        """Returns the messages of a stream until `over` returns true. Opens the stream again if the server cannot be reached, or
        ends the stream earlier, with exponential backoff. Raises ScalelabError with code UNAVAILABLE after a minute in which no
        message was new and no stream stayed open for 10 seconds. A message is new if its `state` differs from that of the last
        message of the stream before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        known: Any = None  # the state of the last message
        lost: float | None = None  # when the first of the streams without news ended
        ended, renewed, pause = 0, False, _FIRST_PAUSE
        while True:
            opened = time.monotonic()
            last: Any = None
            call = method(request, timeout=None if deadline is None else max(0.0, deadline - opened), metadata=self._metadata())
            try:
                for last in call:
                    yield last
                    if over(last):
                        return
                explained, answered = self._unreachable(), True
            except grpc.RpcError as error:
                explained, answered = self.explain(error), last is not None
            finally:
                call.cancel()
            now = time.monotonic()
            before, known = known, known if last is None else state(last)
            steady = now - opened > _STEADY
            if lost is None or steady or known != before:
                lost, ended = now, 0
            else:
                ended += answered
            renewed = renewed and last is None
            if explained.code == "UNAUTHENTICATED" and self._renew_session(renewed):
                renewed = True
            elif explained.code != "UNAVAILABLE" or explained.reason:
                raise explained
            if now - lost > _PATIENCE:
                raise self._ends_streams(ended, now - lost) if answered and explained.code == "UNAVAILABLE" else explained
            pause = _FIRST_PAUSE if steady else pause
            time.sleep(pause if deadline is None else min(pause, max(0.0, deadline - now)))
            pause = min(2 * pause, _LAST_PAUSE)

    def explain(self, error: Any) -> ScalelabError:
        """Converts the error of a call to an exception for users."""
        code, message, text = error.code().name, error.details() or "", self.server.text
        metadata = dict(error.trailing_metadata() or ())
        reason, violations = parse_details(metadata.get("grpc-status-details-bin", b""))
        if code == "UNAUTHENTICATED":
            message = f"the server at {text} rejects the credentials: {message}"
            message += f"; no login with MUNGE: {self._no_session}" if self._no_session and not self._session else ""
            message += "" if reason else "; give the file of a valid token with token_file or SCALELAB_TOKEN_FILE"
        elif code == "UNAVAILABLE" and not reason:
            return self._unreachable()
        elif code == "DEADLINE_EXCEEDED" and not reason:
            message = f"the server at {text} did not answer within the timeout; use a longer one"
        elif code == "UNIMPLEMENTED":
            message = f"the server at {text} has another version and does not support this call"
        return ScalelabError(message, code, reason, violations)

    def _unreachable(self) -> ScalelabError:
        path = self.server.socket_path
        if path and os.path.exists(path) and not os.access(path, os.W_OK):
            return ScalelabError(f"no permission to open the socket {path}: ask the server's operator for an address and a token",
                                 "PERMISSION_DENIED")
        hint = "start one with `scalelabd --data DIR`, or name another with Client(server=...) or SCALELAB_SERVER"
        if self.server.encrypted:
            hint = f"if it is there, run `scalelab login {self.server.text}` to compare and accept its certificate"
        return ScalelabError(f"no scalelab server answers at {self.server.text}: {hint}", "UNAVAILABLE")

    def _ends_streams(self, times: int, seconds: float) -> ScalelabError:
        return ScalelabError(f"the server at {self.server.text} ended the stream {times} times in {seconds:.0f} seconds without anything "
                             "new; read the server's log, and check proxies between this machine and it", "UNAVAILABLE")

    def _connects(self, timeout: float) -> bool:
        """Waits for the first connection or its failure."""
        settled = threading.Event()
        states: list[Any] = []

        def changed(state: Any) -> None:
            if state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                states.append(state)
                settled.set()

        self._channel.subscribe(changed, try_to_connect=True)
        settled.wait(timeout)
        self._channel.unsubscribe(changed)
        return states[:1] == [grpc.ChannelConnectivity.READY]

    def _answer(self, method: Any, request: Any, future: Any) -> Any:
        try:
            return future.result()
        except grpc.RpcError:
            return self.call(method, request)

    def _metadata(self) -> list[tuple[str, str]]:
        token = self._token
        if not token and self.server.encrypted:
            with self._lock:
                if self._session is None or not self._session.usable:
                    self._session = session_token.stored(self.server.text) or self._new_session()
                token = self._session.secret if self._session else ""
        return [("authorization", "Bearer " + token)] if token else []

    def _renew_session(self, renewed: bool) -> bool:
        """Replaces the session token, which an earlier server at this address may have issued. Returns whether there is a new
        token."""
        if renewed or self._token or self._session is None:
            return False
        with self._lock:
            self._session = self._new_session()
            return self._session is not None

    def _new_session(self) -> session_token.SessionToken | None:
        """Logs in with MUNGE. Returns None if that is not possible."""
        def call(method: Any, request: Any) -> Any:
            return method(request, timeout=self.timeout)

        try:
            if self.server.certificate:
                return session_token.create(self.server.text, self._auth, self.server.certificate, call)
            # gRPC does not tell a Python client which certificate the server of a channel has presented. So this login has a
            # channel of its own, which trusts the certificate that is signed and no other.
            certificate = address.presented_certificate(self.server.text, self.timeout)
            with _secure_channel(self.server.target, certificate) as channel:
                return session_token.create(self.server.text, auth_pb2_grpc.AuthServiceStub(channel), certificate, call)
        except grpc.RpcError as error:
            self._no_session = error.details() or ""
        except (OSError, ScalelabError) as error:
            self._no_session = str(error)
        return None


def _secure_channel(target: str, certificate: str) -> Any:
    """Returns a channel that trusts a certificate (PEM), or the authorities of the system if it is empty."""
    options = list(_OPTIONS)
    host = address.host_of(certificate) if certificate else ""
    if host:
        options.append(("grpc.ssl_target_name_override", host))
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(certificate.encode() or None), options)
