# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Checks signatures and rights of sends, pulls and pops, and signs the requests of clients.

`broker.permissions.rules` checks again a request that does not pass: this module may not read its form.
"""

import _hashlib
import ctypes
import hmac
from hashlib import sha1

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from pyromq.speedups.codec cimport MAX_OTHERS, Field, Frame, Header, HeaderReader, copy_text, json_text, write_base64
from pyromq.speedups.constants cimport *
from pyromq.speedups.fast_path cimport FastGuard, Passed
from pyromq.speedups.kernels cimport get_u32, is_same, put_u16, put_u32, put_u64

cdef enum:
    ROOM = 1 << 18  # limit of the signed content (bytes): twice the largest request that is checked here
    SHORT = 16  # bytes copied for a short value: most values are not longer
    MAX_DECIDED = 10_000
    BLOCK_SIZE = 64
    DIGEST_SIZE = 20
    PADDING = 72  # limit of the bytes that SHA-1 adds to content
    SIGNED_SIZE = 28  # size of a signature in Base64 (bytes)
    MAX_NAME = 1024
    MAX_SIGNED = 32  # limit of signed fields
    MAX_OWN = 2  # limit of fields that a signer adds, without the signature
    MAX_NAMES = 512  # limit of names (bytes) that are compared with those of the previous request

ctypedef struct Sha1:
    uint32_t words[32]  # SHA_CTX of openssl/sha.h, 24 words; the first five are the hash of the previous blocks

ctypedef struct OpenSsl:
    int (*init)(Sha1* state) noexcept nogil
    int (*update)(Sha1* state, const char* data, size_t size) noexcept nogil

cdef OpenSsl _openssl


def use_openssl(bint is_wanted=True):
    """Let new keys use the SHA-1 of the OpenSSL library that `hashlib` has loaded. Return True if they do.

    With `is_wanted` False, or if Python hides that library, new keys use `hmac`, which takes ten times as long.
    """
    cdef uintptr_t init = 0, update = 0
    if is_wanted:
        try:
            library = ctypes.CDLL(_hashlib.__file__)
            init, update = (
                ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                for name in ("SHA1_Init", "SHA1_Update")
            )
        except (AttributeError, OSError):  # OpenSSL is linked into Python, or hides these functions
            init = 0
    _openssl.init = <int (*)(Sha1*) noexcept nogil> init
    _openssl.update = <int (*)(Sha1*, const char*, size_t) noexcept nogil> update
    return init != 0


use_openssl()


cdef class Key:
    """A secret key, with the HMAC-SHA1 states after the key's own blocks."""

    cdef bytes _secret
    cdef OpenSsl _openssl
    cdef Sha1 _inner
    cdef Sha1 _outer

    def __init__(self, bytes secret):
        self._secret = secret
        self._openssl = _openssl
        if self._openssl.init != NULL:
            block = (sha1(secret).digest() if len(secret) > BLOCK_SIZE else secret).ljust(BLOCK_SIZE, b"\0")
            self._start(&self._inner, bytes(byte ^ 0x36 for byte in block))
            self._start(&self._outer, bytes(byte ^ 0x5C for byte in block))

    cdef int _start(self, Sha1* state, bytes block) except -1:
        self._openssl.init(state)
        self._openssl.update(state, PyBytes_AS_STRING(block), BLOCK_SIZE)
        return 0

    def signature(self, bytes content):
        """Return the Base64 signature of `content`. For tests."""
        cdef char signature[SIGNED_SIZE]
        cdef bytes room = content + bytes(PADDING)
        self.sign(PyBytes_AS_STRING(room), PyBytes_GET_SIZE(content), signature)
        return signature[:SIGNED_SIZE]

    cdef int sign(self, char* content, Py_ssize_t size, char* signature) except -1:
        """Write the signature of `size` bytes of content, in Base64, to `signature`.

        At most `PADDING` bytes after the content are overwritten.
        """
        cdef char digest[BLOCK_SIZE]
        if self._openssl.init == NULL:
            slow = hmac.digest(self._secret, content[:size], "sha1")
            memcpy(digest, PyBytes_AS_STRING(slow), DIGEST_SIZE)
        else:
            self._hash(&self._inner, content, size, digest)
            self._hash(&self._outer, digest, DIGEST_SIZE, digest)
        write_base64(digest, DIGEST_SIZE, signature)
        return 0

    cdef void _hash(self, const Sha1* start, char* content, Py_ssize_t size, char* digest) noexcept nogil:
        """Write the SHA-1 hash of the key's block and of the content, which is padded in place.

        OpenSSL's own padding would copy the last block, and erase its state, for every hash.
        """
        cdef Sha1 state = start[0]
        cdef Py_ssize_t padded = (size + 9 + BLOCK_SIZE - 1) & -BLOCK_SIZE
        cdef int number
        memset(content + size, 0, padded - size)
        content[size] = <char> 0x80
        put_u64(content + padded - 8, <uint64_t> (BLOCK_SIZE + size) * 8)
        self._openssl.update(&state, content, padded)
        for number in range(DIGEST_SIZE // 4):
            put_u32(digest + 4 * number, state.words[number])


cdef bint _is_same_signature(const char* a, const char* b) noexcept nogil:
    """Return True if two signatures are equal. Takes the same time for all signatures."""
    cdef char differences = 0
    cdef int number
    for number in range(SIGNED_SIZE):
        differences |= a[number] ^ b[number]
    return differences == 0


cdef class FastAccount:
    """An account with its key and the cached decisions on topics and groups."""

    cdef str access_key
    cdef bytes encoded
    cdef Key key
    cdef dict decided
    cdef bytes last


cdef class FastAcl(FastGuard):
    """Checks the permissions of requests of one code. `topic` and `group` are field numbers; `group` -1: no such field.

    `in_force()` returns another object once accounts or rights have changed. `secret_of(access key)` returns the secret
    key, None for an unknown account. `may(access key, topic, group)` returns whether an account has the rights.
    `trusts(four bytes)` returns whether an IPv4 address is on the white list.
    """

    cdef HeaderReader _reader
    cdef int _topic, _group
    cdef object _in_force, _secret_of, _may, _trusts, _seen
    cdef dict _accounts, _trusted
    cdef FastAccount _last
    cdef bint _has_white_list
    cdef char* _content
    # Order in which the values are signed, valid for requests with the same fields as the previous request.
    cdef uint32_t _declared
    cdef int _other_count, _count, _access_key, _signature
    cdef char* _names
    cdef Py_ssize_t _name_ends[8]
    cdef int _order[MAX_SIGNED]

    def __cinit__(self):
        self._content = <char*> malloc(ROOM)
        self._names = <char*> malloc(MAX_NAMES)
        if self._content == NULL or self._names == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._content)
        free(self._names)

    def __init__(self, HeaderReader reader, *, int topic, int group, in_force, secret_of, may, trusts):
        self._reader = reader
        self._topic = topic
        self._group = group
        self._in_force = in_force
        self._secret_of = secret_of
        self._may = may
        self._trusts = trusts
        self._accounts = {}
        self._trusted = {}
        self._seen = None
        self._last = None
        self._other_count = -1

    def judge(self, int serialization, bytes header, bytes body, bytes address):
        """Return True if a request is permitted. For tests."""
        cdef Frame frame
        cdef Header found
        cdef Passed passed
        frame.header = PyBytes_AS_STRING(header)
        frame.header_size = PyBytes_GET_SIZE(header)
        frame.body = PyBytes_AS_STRING(body)
        frame.body_size = PyBytes_GET_SIZE(body)
        frame.serialization = serialization
        self.begin()
        if not self._reader.read(&frame, &found):
            return False
        return self.passes(&frame, &found, PyBytes_AS_STRING(address), &passed)

    cdef bint begin(self) except -1:
        """Drop the cached decisions if accounts or rights have changed."""
        in_force = self._in_force()
        if in_force is not self._seen:
            self._seen = in_force
            self._has_white_list = bool(in_force.white_list)
            self._accounts.clear()
            self._trusted.clear()
            self._last = None
        return True

    cdef bint passes(self, const Frame* frame, const Header* header, const char* address, Passed* passed) except -1:
        cdef char signature[SIGNED_SIZE]
        cdef const Field* given
        cdef FastAccount account
        cdef Py_ssize_t size
        passed.copy = NULL
        if self._has_white_list and self._is_trusted(address):
            return True
        if not self._arrange(header):
            return False
        account = self._account(&header.others[self._access_key])
        given = &header.others[self._signature]
        if account is None or given.is_escaped or given.size != SIGNED_SIZE:
            return False
        size = self._write_signed(frame, header, passed)
        if size < 0:
            return False
        account.key.sign(self._content, size, signature)
        return _is_same_signature(signature, given.at) and self._has_right(account, header)

    cdef bint _is_trusted(self, const char* address) except -1:
        cdef PyObject* found
        key = PyBytes_FromStringAndSize(address, 4)
        found = PyDict_GetItem(self._trusted, key)
        if found != NULL:
            return <object> found is True
        if len(self._trusted) >= MAX_DECIDED:
            self._trusted.clear()
        trusted = self._trusted[key] = bool(self._trusts(key))
        return trusted

    cdef bint _arrange(self, const Header* header) noexcept:
        """Find the order of the signed values, and the fields of access key and signature. False for unusual fields."""
        cdef uint32_t declared = header.declared
        cdef int number, place, count = 0
        cdef const char* names[MAX_SIGNED]
        cdef Py_ssize_t sizes[MAX_SIGNED]
        cdef const char* name
        cdef Py_ssize_t size, used = 0
        if self._is_as_before(header, declared):
            return True
        self._other_count = self._access_key = self._signature = -1
        if header.other_count > MAX_OTHERS:
            return False
        for number in range(-self._reader.count, header.other_count):
            if number < 0:
                place = number + self._reader.count
                if not declared >> place & 1:
                    continue
                name, size = self._reader.names[place], self._reader.name_sizes[place]
            else:
                name, size = header.other_names[number].at, header.other_names[number].size
                place = self._reader.count + number
                if used + size > MAX_NAMES:
                    return False
                memcpy(self._names + used, name, size)
                used += size
                self._name_ends[number] = used
                if size == SIGNATURE_SIZE and memcmp(name, SIGNATURE, SIGNATURE_SIZE) == 0:
                    if self._signature >= 0:
                        return False
                    self._signature = number
                    continue
                if size == ACCESS_KEY_SIZE and memcmp(name, ACCESS_KEY, ACCESS_KEY_SIZE) == 0:
                    self._access_key = number
            if size == UNIQUE_KEY_QUERY_SIZE and memcmp(name, UNIQUE_KEY_QUERY, size) == 0:
                return False
            if count == MAX_SIGNED:
                return False
            spot = count
            while spot and _is_before(name, size, names[spot - 1], sizes[spot - 1]):
                names[spot], sizes[spot], self._order[spot] = names[spot - 1], sizes[spot - 1], self._order[spot - 1]
                spot -= 1
            names[spot], sizes[spot], self._order[spot] = name, size, place
            # A repeated field is left to the plain path (the Python code), where the last value counts.
            if spot and sizes[spot - 1] == size and memcmp(names[spot - 1], name, size) == 0:
                return False
            count += 1
        self._count = count
        if self._access_key < 0 or self._signature < 0:
            return False
        self._declared, self._other_count = declared, header.other_count
        return True

    cdef bint _is_as_before(self, const Header* header, uint32_t declared) noexcept:
        """Return True if the request has the same fields as the previous request, as usual."""
        cdef int number
        cdef Py_ssize_t begin = 0
        if declared != self._declared or header.other_count != self._other_count:
            return False
        for number in range(header.other_count):
            if header.other_names[number].size != self._name_ends[number] - begin or not is_same(
                header.other_names[number].at, self._names + begin, header.other_names[number].size
            ):
                return False
            begin = self._name_ends[number]
        return True

    cdef Py_ssize_t _write_signed(self, const Frame* frame, const Header* header, Passed* passed) noexcept:
        """Write the signed content of a request: values, then body. Return its size; -1 if it exceeds `ROOM`."""
        cdef const Field* field
        cdef const char* header_end = frame.header + frame.header_size
        cdef char* at = self._content
        cdef Py_ssize_t room = ROOM - PADDING - frame.body_size, size
        cdef int number, place
        for number in range(self._count):
            place = self._order[number]
            if place < self._reader.count:
                field = &header.fields[place]
            else:
                field = &header.others[place - self._reader.count]
            if field.size + SHORT > room - (at - self._content):
                return -1
            if field.size <= SHORT and not field.is_escaped and header_end - field.at >= SHORT:
                memcpy(at, field.at, SHORT)  # a fixed size needs no call; the next value overwrites the excess
                at += field.size
                continue
            size = copy_text(field, at)
            if field.is_escaped and place < self._reader.count:
                passed.copy, passed.copy_size, passed.copied = at, size, place
            at += size
        memcpy(at, frame.body, frame.body_size)
        return at + frame.body_size - self._content

    cdef FastAccount _account(self, const Field* name):
        """Return the account with an access key; None if the account is unknown."""
        cdef FastAccount account = self._last
        cdef PyObject* found
        if account is not None and PyBytes_GET_SIZE(account.encoded) == name.size and is_same(
            PyBytes_AS_STRING(account.encoded), name.at, name.size
        ):
            return account
        if name.is_escaped:
            return None
        key = PyBytes_FromStringAndSize(name.at, name.size)
        found = PyDict_GetItem(self._accounts, key)
        if found != NULL:
            account = <FastAccount> <object> found
        else:
            access_key = key.decode("utf-8")
            secret = self._secret_of(access_key)
            if secret is None:  # not cached: clients could fill the memory with names
                return None
            encoded = (<str> secret).encode()
            account = FastAccount()
            account.access_key = access_key
            account.encoded = key
            account.decided = {}
            account.last = b""
            account.key = Key(encoded)
            self._accounts[key] = account
        self._last = account
        return account

    cdef bint _has_right(self, FastAccount account, const Header* header) except -1:
        """Return True if an account has the rights on topic and group. `may` is called once for each pair."""
        cdef const Field* topic = &header.fields[self._topic]
        cdef const Field* group = NULL
        cdef char name[MAX_NAME]
        cdef Py_ssize_t size = topic.size + 2
        cdef PyObject* found
        if topic.is_escaped or size > MAX_NAME:
            return False
        if self._group < 0 and PyBytes_GET_SIZE(account.last) == size and is_same(
            PyBytes_AS_STRING(account.last) + 2, topic.at, topic.size
        ):
            return True
        put_u16(name, <uint16_t> topic.size)  # so that different pairs have different keys
        memcpy(name + 2, topic.at, topic.size)
        if self._group >= 0:
            group = &header.fields[self._group]
            if group.is_escaped or group.size > MAX_NAME - size:
                return False
            memcpy(name + size, group.at, group.size)
            size += group.size
        if PyBytes_GET_SIZE(account.last) == size and memcmp(PyBytes_AS_STRING(account.last), name, size) == 0:
            return True
        key = PyBytes_FromStringAndSize(name, size)
        found = PyDict_GetItem(account.decided, key)
        if found != NULL:
            may = <object> found
        else:
            if len(account.decided) >= MAX_DECIDED:
                account.decided.clear()
            named = None if group == NULL else group.at[: group.size].decode("utf-8")
            may = account.decided[key] = bool(self._may(account.access_key, topic.at[: topic.size].decode("utf-8"), named))
        if may:
            account.last = key
        return may


cdef inline bint _is_before(const char* a, Py_ssize_t a_size, const char* b, Py_ssize_t b_size) noexcept:
    cdef int order = memcmp(a, b, min(a_size, b_size))
    return order < 0 or (order == 0 and a_size < b_size)


cdef class FrameSigner:
    """Signs request frames as `remoting.signer` does. `added` are names and values to add, without the signature."""

    cdef Key _key
    cdef bytes _added
    cdef list _texts
    cdef int _own_count, _seen_count
    cdef Field _own_names[MAX_OWN]
    cdef Field _own_values[MAX_OWN]
    # Order in which the values are signed, valid for frames with the same names as the previous frame.
    cdef char _seen[MAX_NAMES]
    cdef Py_ssize_t _seen_ends[MAX_SIGNED]
    cdef int _order[MAX_SIGNED]

    def __init__(self, str secret, list added, bytes as_json):
        self._key = Key(secret.encode())
        self._added = as_json
        self._texts = [(name.encode(), value.encode()) for name, value in added]
        self._own_count = len(added)
        if self._own_count > MAX_OWN:
            raise ValueError(f"{self._own_count} fields to add; at most {MAX_OWN} can be")
        for number, (name, value) in enumerate(self._texts):
            _point(&self._own_names[number], name)
            _point(&self._own_values[number], value)
        self._seen_count = -1

    def sign(self, bytes frame):
        """Return the frame with access key and signature added; None if the plain path must sign an unusual header."""
        cdef const char* start = PyBytes_AS_STRING(frame)
        cdef const char* end
        cdef const char* p = start + 16
        cdef Field names[MAX_SIGNED]
        cdef Field values[MAX_SIGNED]
        cdef int count = 0, number
        if start[4] != 0:
            return None
        end = start + 8 + (get_u32(start + 4) & 0xFFFFFF)
        while p < end and c'0' <= p[0] <= c'9':
            p += 1
        if end - p < 15 or memcmp(p, b',"extFields":{', 14) != 0:
            return None
        p += 14
        while p[0] == c'"' and count < MAX_SIGNED - MAX_OWN - 1:
            p = json_text(p + 1, end, &names[count])
            if p == NULL or names[count].is_escaped or end - p < 4 or p[0] != c':' or p[1] != c'"':
                return None
            p = json_text(p + 2, end, &values[count])
            if p == NULL or end - p < 2:
                return None
            if names[count].size != UNIQUE_KEY_QUERY_SIZE or memcmp(names[count].at, UNIQUE_KEY_QUERY, UNIQUE_KEY_QUERY_SIZE) != 0:
                count += 1
            if p[0] == c',':
                p += 1
        if p[0] != c'}':
            return None
        for number in range(self._own_count):
            names[count], values[count] = self._own_names[number], self._own_values[number]
            count += 1
        if not self._is_as_before(names, count):
            self._arrange(names, count)
        return self._signed(frame, p, values, count)

    cdef bint _is_as_before(self, const Field* names, int count) noexcept:
        """Return True if the frame has the same field names as the previous frame, as usual."""
        cdef int number
        cdef Py_ssize_t begin = 0, size
        if count != self._seen_count:
            return False
        for number in range(count):
            size = names[number].size
            if size != self._seen_ends[number] - begin or not is_same(names[number].at, self._seen + begin, size):
                return False
            begin += size
        return True

    cdef int _arrange(self, const Field* names, int count) except -1:
        """Sort the values by their names into `_order`, and remember the names."""
        cdef int number, spot
        cdef Py_ssize_t used = 0
        cdef const Field* before
        self._seen_count = count
        for number in range(count):
            spot = number
            while spot:
                before = &names[self._order[spot - 1]]
                if not _is_before(names[number].at, names[number].size, before.at, before.size):
                    break
                self._order[spot] = self._order[spot - 1]
                spot -= 1
            self._order[spot] = number
            if used + names[number].size > MAX_NAMES:
                self._seen_count = -1  # the names are too long to be remembered
                continue
            memcpy(self._seen + used, names[number].at, names[number].size)
            used += names[number].size
            self._seen_ends[number] = used
        return 0

    cdef bytes _signed(self, bytes frame, const char* fields_end, const Field* values, int count):
        cdef const char* start = PyBytes_AS_STRING(frame)
        cdef const char* end = start + PyBytes_GET_SIZE(frame)
        cdef const char* body = start + 8 + (get_u32(start + 4) & 0xFFFFFF)
        cdef Py_ssize_t at = 0, added = PyBytes_GET_SIZE(self._added), head = fields_end - start, more
        cdef int number
        cdef bint is_first = start[head - 1] == c'{'
        cdef bytes signed
        cdef char* p
        # Large enough: unescaped values are not longer than in the frame, and `added` contains the added values.
        cdef char* room = <char*> malloc(end - start + added + PADDING)
        if room == NULL:
            raise MemoryError
        for number in range(count):
            at += copy_text(&values[self._order[number]], room + at)
        memcpy(room + at, body, end - body)
        at += end - body
        more = added + SIGNED_SIZE + 1 + (not is_first)
        signed = PyBytes_FromStringAndSize(NULL, end - start + more)
        p = PyBytes_AS_STRING(signed)
        put_u32(p, <uint32_t> (end - start - 4 + more))
        put_u32(p + 4, <uint32_t> (body - start - 8 + more))
        memcpy(p + 8, start + 8, head - 8)
        p += head
        if not is_first:
            p[0] = c','
            p += 1
        memcpy(p, PyBytes_AS_STRING(self._added), added)
        p += added
        try:
            self._key.sign(room, at, p)
        finally:
            free(room)
        p += SIGNED_SIZE
        p[0] = c'"'
        memcpy(p + 1, fields_end, end - fields_end)
        return signed


cdef inline void _point(Field* field, bytes text) noexcept:
    field.at = PyBytes_AS_STRING(text)
    field.size = PyBytes_GET_SIZE(text)
    field.is_escaped = False
