"""The registry of replica sets on etcd 3.4 or later, by etcd's JSON gateway (`/v3/...`).

Only this module knows etcd. A stopped endpoint still accepts connections, and an unplugged one never answers. So every
request to an endpoint has a short time-out, and then goes to the next endpoint at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import ceil
from typing import Any

import msgspec

from pyromq.broker.replication.registry import ABSENT, Changed, Conflict, Lease, Listing, Missed, Unknown, Versioned
from pyromq.errors import LeaseGone, RegistryRefused, RegistryUnavailable, UsageError
from pyromq.excerpt import excerpt
from pyromq.extras import install_command
from pyromq.net.tls.failures import describe
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.platforms import platform

try:
    import httpx
except ImportError as missing:
    raise UsageError(f"replica sets need the package httpx; install it: {install_command('failover')}") from missing

# Limit of one try, and the time after which `read` and `keep` ask a second endpoint too. Both are far below the
# shortest lease (2 s), so that a stopped endpoint costs no lease.
TRY_SECONDS, SECOND_SECONDS = 0.5, 0.25
AVOID_SECONDS = 5.0  # an endpoint that failed is tried last for this time
# Limit of a watch's silence. etcd sends nothing on a quiet watch for ten minutes, so the watch is opened again.
SILENCE_SECONDS = 2.0
PAUSE_SECONDS = 0.1  # between two attempts to open a watch while endpoints fail

# gRPC's error codes for a wrong request. After any other error, the request goes to the next endpoint.
_INVALID_ARGUMENT, _NOT_FOUND, _DENIED, _AUTH_IS_OFF, _UNIMPLEMENTED, _BAD_TOKEN = 3, 5, 7, 9, 12, 16
# etcd's error texts for a request without a token, or with a token that is older than a change of accounts. etcd gives
# them the code of an invalid argument.
_TOKEN_TEXTS = ("user name is empty", "revision of auth store is old")
_WATCH_REFUSALS = ("code = InvalidArgument", "code = PermissionDenied", "code = Unauthenticated", "permission denied")
_GRANT = "grant the account in PYROMQ_ETCD_USER the right to read and write keys below /pyromq/"
_CURE = "set PYROMQ_ETCD_USER and PYROMQ_ETCD_PASSWORD to an account of etcd"
# An endpoint without a leader ends the watch instead of being silent.
_WATCH_HEADERS = {"Grpc-Metadata-hasleader": "true"}


class _KeyValue(msgspec.Struct, frozen=True):
    key: bytes  # Base64 in JSON, as all bytes
    value: bytes = b""
    mod_revision: int = 0  # a string in JSON, as all 64-bit numbers


class _AnswerHeader(msgspec.Struct, frozen=True):
    revision: int = 0


class _Event(msgspec.Struct, frozen=True):
    kv: _KeyValue
    type: str = "PUT"


class _Range(msgspec.Struct, frozen=True):
    kvs: tuple[_KeyValue, ...] = ()


class _Response(msgspec.Struct, frozen=True):
    response_range: _Range = _Range()


class _StreamError(msgspec.Struct, frozen=True):
    message: str = ""
    grpc_code: int = 0


class _Result(msgspec.Struct, frozen=True):
    """The content of a line of a stream: of a watch, or of a lease's renewal."""

    TTL: int = 0
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: tuple[_Event, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    """Any answer of etcd. etcd leaves out fields that are zero, false or empty."""

    header: _AnswerHeader = _AnswerHeader()
    kvs: tuple[_KeyValue, ...] = ()
    succeeded: bool = False
    responses: tuple[_Response, ...] = ()
    ID: int = 0
    TTL: int = 0
    token: str = ""
    result: _Result = _Result()
    error: str | _StreamError = ""
    code: int = 0


class _Failed(Exception):
    """An endpoint did not answer, or answered with its own error. `unsent`: the request did not leave this machine."""

    def __init__(self, text: str, *, unsent: bool = False) -> None:
        super().__init__(text)
        self.unsent = unsent


class _TokenRefused(RegistryRefused):
    """etcd did not process the request, because it does not accept the token."""


class EtcdRegistry:
    """A `Registry` on the members of one etcd cluster."""

    def __init__(
        self, endpoints: tuple[str, ...], *, user: str = "", password: str = "", tls: TlsConfig | None = None
    ) -> None:
        """`endpoints` are URLs of members. Raises `UsageError` if a file of `tls` cannot be used."""
        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._account = {"name": user, "password": password} if user else None
        self._token = ""
        self._tls = tls or TlsConfig()
        self._context = self._tls.context()
        self._clients = [self._new_client()]  # the last one is in use; the others have replaced certificates
        self._avoid: dict[str, float] = {}  # endpoint -> monotonic time until which it is tried last

    async def read(self, key: str) -> Versioned:
        answer, _ = await self._ask("kv/range", {"key": key.encode()}, second=True)
        return _first(answer.kvs)

    async def read_all(self, prefix: str) -> Listing:
        answer, _ = await self._ask("kv/range", _below(prefix), second=True)
        entries = {each.key.decode(): Versioned(each.value, each.mod_revision) for each in answer.kvs}
        return Listing(entries, answer.header.revision)

    async def swap(
        self, key: str, revision: int, value: bytes | None, *, lease: int | None = None
    ) -> int | Conflict | Unknown:
        at = {"key": key.encode()}
        put = {"request_put": at | {"value": value, "lease": str(lease or 0)}}
        body = {
            "compare": [at | {"target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}],
            "success": [{"request_delete_range": at} if value is None else put],
            "failure": [{"request_range": at}],
        }
        failures = []
        for endpoint in self._order():
            try:
                answer, _ = await self._post(endpoint, "kv/txn", body)
            except _Failed as failed:
                failures.append(str(failed))
                if failed.unsent:
                    continue  # the request was not sent to this endpoint
                break
            return (
                answer.header.revision if answer.succeeded else Conflict(_first(answer.responses[0].response_range.kvs))
            )
        return Unknown("; ".join(failures))

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Changed | Missed]:
        has_new_token = False
        while True:
            endpoint = self._order()[0]
            try:
                async for news in self._news(endpoint, prefix, after):
                    after = max(after, news.revision if isinstance(news, Missed) else news.now.revision)
                    yield news
                has_new_token = False
            except _TokenRefused:
                if has_new_token or self._account is None:
                    raise
                self._token, has_new_token = "", True
            except _Failed:
                await asyncio.sleep(PAUSE_SECONDS)

    async def lease(self, seconds: float) -> Lease:
        answer, sent = await self._ask("lease/grant", {"TTL": str(ceil(seconds))})
        return Lease(answer.ID, answer.TTL, sent)

    async def keep(self, lease_id: int) -> Lease:
        answer, sent = await self._ask("lease/keepalive", {"ID": str(lease_id)}, second=True)
        return Lease(lease_id, answer.result.TTL, sent)

    async def release(self, lease_id: int) -> None:
        with suppress(LeaseGone):
            await self._ask("lease/revoke", {"ID": str(lease_id)})

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def _ask(self, path: str, body: dict[str, Any], *, second: bool = False) -> tuple[_Answer, float]:
        """Send a request to each endpoint once, until one answers. Return the answer, and when its request was sent.

        `second`: send the request to the next endpoint too if an answer does not come soon.
        """
        failures: list[str] = []
        tries: dict[asyncio.Task[tuple[_Answer, float]], str] = {}
        waiting = self._order()
        try:
            while waiting or tries:
                if waiting:
                    endpoint = waiting.pop(0)
                    tries[asyncio.create_task(self._post(endpoint, path, body))] = endpoint
                patience = SECOND_SECONDS if second and waiting else None
                done, _ = await asyncio.wait(tries, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    del tries[each]
                    try:
                        return each.result()
                    except _Failed as failed:
                        failures.append(str(failed))
        finally:
            for each, endpoint in tries.items():
                if each.cancel():
                    self._failed(endpoint)  # another endpoint with a later request was faster
            await asyncio.gather(*tries, return_exceptions=True)
        raise RegistryUnavailable(f"etcd does not answer: {'; '.join(failures)}")

    async def _post(self, endpoint: str, path: str, body: dict[str, Any]) -> tuple[_Answer, float]:
        """Send a request to one endpoint, once more only if etcd did not accept the token.

        Return the answer, and when the request was sent. Raises `_Failed` and `RegistryRefused`.
        """
        try:
            return await self._post_once(endpoint, path, body)
        except _TokenRefused:
            if self._account is None:
                raise
        self._token = ""
        return await self._post_once(endpoint, path, body)

    async def _post_once(self, endpoint: str, path: str, body: dict[str, Any]) -> tuple[_Answer, float]:
        headers = await self._authorization(endpoint)
        async with self._one_try(endpoint, TRY_SECONDS):
            sent = platform.boot_seconds()
            content = msgspec.json.encode(body)
            response = await self._client().post(f"{endpoint}/v3/{path}", content=content, headers=headers)
            return _read_answer(endpoint, response.content), sent

    async def _authorization(self, endpoint: str) -> dict[str, str]:
        if self._account is None:
            return {}
        if not self._token:
            async with self._one_try(endpoint, TRY_SECONDS):
                content = msgspec.json.encode(self._account)
                response = await self._client().post(f"{endpoint}/v3/auth/authenticate", content=content)
                try:
                    self._token = _read_answer(endpoint, response.content).token
                except RegistryRefused as error:
                    raise RegistryRefused(f"{error} for user {self._account['name']}; {_CURE}") from error
        return {"Authorization": self._token} if self._token else {}  # no token: this etcd does not ask for accounts

    async def _news(self, endpoint: str, prefix: str, after: int) -> AsyncGenerator[Changed | Missed]:
        """Yield changes from a watch at one endpoint, until the watch has been silent for a while. Raises `_Failed`."""
        create = _below(prefix) | {"start_revision": str(after + 1), "progress_notify": True}
        content = msgspec.json.encode({"create_request": create})
        headers = await self._authorization(endpoint) | _WATCH_HEADERS
        request = self._client().build_request("POST", f"{endpoint}/v3/watch", content=content, headers=headers)
        async with self._one_try(endpoint, TRY_SECONDS):
            response = await self._client().send(request, stream=True)
        try:
            lines = response.aiter_lines()  # the gateway cuts answers anywhere, but ends each with a new line
            first = True
            while (result := await self._next_result(endpoint, lines, first=first)) is not None:
                for event in result.events:
                    value = event.kv.value if event.type == "PUT" else None
                    yield Changed(event.kv.key.decode(), Versioned(value, event.kv.mod_revision))
                if result.compact_revision:
                    yield Missed(result.compact_revision - 1)
                    return
                first = False
        finally:
            await response.aclose()

    async def _next_result(self, endpoint: str, lines: AsyncIterator[str], *, first: bool) -> _Result | None:
        """Return the next answer of a watch; None after a long silence. Raises `_Failed` if the first one is late."""
        async with self._one_try(endpoint, TRY_SECONDS if first else 2 * SILENCE_SECONDS):
            try:
                async with asyncio.timeout(None if first else SILENCE_SECONDS):
                    line = await anext(lines, "")
            except TimeoutError:
                return None
            if not line:
                raise _Failed(f"{endpoint} closed the watch")
            result = _read_answer(endpoint, line.encode()).result
            if result.canceled and not result.compact_revision:
                text = f"etcd at {endpoint} ended the watch: {excerpt(result.cancel_reason)}"
                is_refused = any(each in text for each in _WATCH_REFUSALS)
                raise _TokenRefused(f"{text}; {_CURE}") if is_refused else _Failed(text)
            return result

    @asynccontextmanager
    async def _one_try(self, endpoint: str, seconds: float) -> AsyncGenerator[None]:
        """Limit the time of one request to an endpoint. Raises `_Failed` for all errors of the connection."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            self._failed(endpoint)
            raise _Failed(f"{endpoint} was silent for {seconds} s") from error
        except (httpx.HTTPError, OSError) as error:  # `OSError`: httpx lets alerts of TLS through
            self._failed(endpoint)
            is_unsent = isinstance(error, httpx.ConnectError)
            text = f"{endpoint}: {_reason(error)}"
            if not is_unsent and self._tls.certificate is None:
                text += f" (it may require {'a client certificate' if endpoint.startswith('https') else 'https://'})"
            raise _Failed(text, unsent=is_unsent) from error
        except _Failed:
            self._failed(endpoint)
            raise
        self._avoid.pop(endpoint, None)

    def _failed(self, endpoint: str) -> None:
        self._avoid[endpoint] = time.monotonic() + AVOID_SECONDS

    def _order(self) -> list[str]:
        """Return the endpoints in the order of requests: endpoints that failed recently come last."""
        now = time.monotonic()
        return sorted(self._endpoints, key=lambda endpoint: max(self._avoid.get(endpoint, 0.0), now))

    def _client(self) -> httpx.AsyncClient:
        """Return the HTTP client, a new one after a certificate's file was replaced."""
        if (context := self._tls.context()) is not self._context:
            self._context = context
            self._clients.append(self._new_client())
        return self._clients[-1]

    def _new_client(self) -> httpx.AsyncClient:
        # Neither proxies of the environment nor a time-out of httpx: each try has its own.
        return httpx.AsyncClient(verify=self._context, trust_env=False, timeout=None)


def _reason(error: BaseException) -> str:
    """Return the text of the operating system's or TLS error that caused an error of httpx."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return excerpt(describe(error)) or type(error).__name__


def _read_answer(endpoint: str, content: bytes) -> _Answer:
    """Decode an answer. Raises `RegistryRefused` if the request is wrong, `_Failed` if the endpoint cannot answer."""
    try:
        answer = msgspec.json.decode(content, type=_Answer, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _Failed(f"{endpoint} does not answer as etcd: {excerpt(content.decode(errors='replace'))}") from error
    if not answer.error:
        return answer
    if isinstance(answer.error, str):
        text, code = answer.error, answer.code
    else:
        text, code = answer.error.message, answer.error.grpc_code
    if code == _AUTH_IS_OFF and "not enabled" in text:
        return _Answer()
    message = f"etcd at {endpoint} refuses: {excerpt(text)}"
    if code == _BAD_TOKEN or any(each in text for each in _TOKEN_TEXTS):
        raise _TokenRefused(f"{message}; {_CURE}")
    if code == _NOT_FOUND:
        raise LeaseGone(message)
    if code == _DENIED:
        raise RegistryRefused(f"{message}; {_GRANT}")
    if code in (_INVALID_ARGUMENT, _UNIMPLEMENTED):
        raise RegistryRefused(message)
    raise _Failed(f"{endpoint}: {excerpt(text)}")


def _first(found: tuple[_KeyValue, ...]) -> Versioned:
    return Versioned(found[0].value, found[0].mod_revision) if found else ABSENT


def _below(prefix: str) -> dict[str, Any]:
    """Return the fields of a request for all keys that begin with a prefix."""
    key = prefix.encode()
    return {"key": key, "range_end": key[:-1] + bytes([key[-1] + 1])}
