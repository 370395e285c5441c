# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Signatures and rights of hot requests: what `broker.permissions.permission_guard` says of those that pass.

Who does not pass here is judged there: it is refused, or has come in a form that is not read here.
"""

from hashlib import sha1

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from pyromq.speedups.codec cimport Field, Frame, Header, HeaderReader, copy_text, json_text
from pyromq.speedups.fast_path cimport MOST_AT_ONCE, FastGuard, Passed
from pyromq.speedups.kernels cimport get_u32, is_same, put_u16, put_u32

DEF MOST_OTHERS = 8
DEF ROOM = 1 << 18  # bytes of what is signed: requests that come here have half of that at most
DEF PADDING = 72
DEF SHORT = 16  # bytes of most values
DEF MOST_DECIDED = 10_000
DEF SIGNATURE_SIZE = 28
DEF MOST_NAME = 1024

cdef extern from "sha1.h" nogil:
    int SHA1_PROCESSOR, SHA1_AVX2, SHA1_AVX512
    ctypedef struct hmac_key:
        pass
    ctypedef struct hmac_job:
        const hmac_key* key
        char* text
        size_t size
        char* signature
    int sha1_setup(int wanted)
    void hmac_prepare(hmac_key* key, const char* secret, size_t size)
    void hmac_text(const hmac_key* key, char* text, size_t size, char* signature)
    void hmac_texts(hmac_job* jobs, int count)
    bint is_same_signature(const char* a, const char* b)

cdef enum:
    MOST_SIGNED = 32  # fields
    MOST_OWN = 2  # fields that a signer adds, beside the signature
    MOST_NAMES = 512  # bytes of names that are compared with those of the request before

sha1_setup(SHA1_PROCESSOR | SHA1_AVX2 | SHA1_AVX512)


def sha1_forms(int wanted):
    """Choose what SHA-1 is made by, for tests: 1 the processor's instructions for it, 2 AVX2, 4 AVX-512; return what is used."""
    return sha1_setup(wanted)


def signatures(list secrets, list contents):
    """Return the signatures of texts, sixteen at most, which are made together."""
    cdef hmac_key keys[MOST_AT_ONCE]
    cdef hmac_job jobs[MOST_AT_ONCE]
    cdef int number, count = len(contents)
    if count > MOST_AT_ONCE:
        raise ValueError(f"{count} texts; at most {MOST_AT_ONCE} are signed together")
    rooms = [bytearray(content) + bytes(PADDING) for content in contents]
    for number in range(count):
        _prepare(&keys[number], secrets[number])
        jobs[number].key = &keys[number]
        jobs[number].text = PyByteArray_AS_STRING(rooms[number])
        jobs[number].size = len(contents[number])
    hmac_texts(jobs, count)
    return [jobs[number].signature[:SIGNATURE_SIZE] for number in range(count)]


cdef int _prepare(hmac_key* key, bytes secret) except -1:
    if PyBytes_GET_SIZE(secret) > 64:
        secret = sha1(secret).digest()
    hmac_prepare(key, PyBytes_AS_STRING(secret), PyBytes_GET_SIZE(secret))
    return 0


cdef class FastAccount:
    """An account as requests are judged by it: its key, prepared, and what is decided about topics and groups."""

    cdef str access_key
    cdef bytes encoded
    cdef hmac_key key
    cdef dict decided
    cdef bytes last


cdef class FastAcl(FastGuard):
    """Judges requests of one kind. `topic` and `group` are the numbers of those fields; a group of -1: there is none.

    `in_force()` returns another object when accounts or rights have changed. `secret_of(access key)` returns a secret key,
    None for an unknown account; `may(access key, topic, group)` whether an account has the rights; `trusts(four bytes)`
    whether everybody at an IPv4 address may do everything.
    """

    cdef HeaderReader _reader
    cdef int _topic, _group
    cdef object _in_force, _secret_of, _may, _trusts, _seen
    cdef dict _accounts, _trusted
    cdef FastAccount _last
    cdef bint _has_white_list
    cdef char* _content
    # In which order values are signed, for the fields that came last.
    cdef uint32_t _declared
    cdef int _other_count, _count, _access_key, _signature
    cdef char* _names
    cdef Py_ssize_t _name_ends[8]
    cdef int _order[MOST_SIGNED]

    def __cinit__(self):
        self._content = <char*> malloc(ROOM)
        self._names = <char*> malloc(MOST_NAMES)
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
        """Whether a request passes; for tests."""
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
        return self.passing(&frame, &found, 1, PyBytes_AS_STRING(address), &passed) == 1

    cdef bint begin(self) except -1:
        """Forget what is decided by accounts that are not in force any more."""
        in_force = self._in_force()
        if in_force is not self._seen:
            self._seen = in_force
            self._has_white_list = bool(in_force.white_list)
            self._accounts.clear()
            self._trusted.clear()
            self._last = None
        return True

    cdef int passing(
        self, const Frame* frames, const Header* headers, int count, const char* address, Passed* passed
    ) except -1:
        """Return how many requests may be answered, up to the first that may not, or is not judged here."""
        cdef hmac_job jobs[MOST_AT_ONCE]
        cdef PyObject* permits[MOST_AT_ONCE]  # they stay until the next turn
        cdef const Field* given[MOST_AT_ONCE]
        cdef FastAccount account
        cdef char* at = self._content
        cdef Py_ssize_t size
        cdef int number
        for number in range(count):
            passed[number].copy = NULL
        if self._has_white_list and self._is_trusted(address):
            return count
        for number in range(count):
            if not self._arrange(&headers[number]):
                count = number
                break
            account = self._account(&headers[number].others[self._access_key])
            given[number] = &headers[number].others[self._signature]
            size = -1
            if account is not None and not given[number].is_escaped and given[number].size == SIGNATURE_SIZE:
                size = self._write_signed(&frames[number], &headers[number], at, &passed[number])
            if size < 0:
                count = number
                break
            permits[number] = <PyObject*> account
            jobs[number].key, jobs[number].text, jobs[number].size = &account.key, at, size
            at += size + PADDING
        hmac_texts(jobs, count)
        for number in range(count):
            if not is_same_signature(jobs[number].signature, given[number].at):
                return number
            if not self._has_right(<FastAccount> permits[number], &headers[number]):
                return number
        return count

    cdef bint _is_trusted(self, const char* address) except -1:
        cdef PyObject* found
        key = PyBytes_FromStringAndSize(address, 4)
        found = PyDict_GetItem(self._trusted, key)
        if found != NULL:
            return <object> found is True
        if len(self._trusted) >= MOST_DECIDED:
            self._trusted.clear()
        trusted = self._trusted[key] = bool(self._trusts(key))
        return trusted

    cdef bint _arrange(self, const Header* header) noexcept:
        """Find the order of the signed values, the account and the signature; False for fields of an unusual kind."""
        cdef uint32_t declared = header.declared
        cdef int number, place, count = 0
        cdef const char* names[MOST_SIGNED]
        cdef Py_ssize_t sizes[MOST_SIGNED]
        cdef const char* name
        cdef Py_ssize_t size, used = 0
        if self._is_as_before(header, declared):
            return True
        self._other_count = self._access_key = self._signature = -1
        if header.other_count > MOST_OTHERS:
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
                if used + size > MOST_NAMES:
                    return False
                memcpy(self._names + used, name, size)
                used += size
                self._name_ends[number] = used
                if size == 9 and memcmp(name, b"Signature", 9) == 0:
                    if self._signature >= 0:
                        return False
                    self._signature = number
                    continue
                if size == 9 and memcmp(name, b"AccessKey", 9) == 0:
                    self._access_key = number
            if size == 17 and memcmp(name, b"_UNIQUE_KEY_QUERY", 17) == 0:
                return False
            if count == MOST_SIGNED:
                return False
            spot = count
            while spot and _is_before(name, size, names[spot - 1], sizes[spot - 1]):
                names[spot], sizes[spot], self._order[spot] = names[spot - 1], sizes[spot - 1], self._order[spot - 1]
                spot -= 1
            names[spot], sizes[spot], self._order[spot] = name, size, place
            if spot and sizes[spot - 1] == size and memcmp(names[spot - 1], name, size) == 0:  # twice: the last one counts
                return False
            count += 1
        self._count = count
        if self._access_key < 0 or self._signature < 0:
            return False
        self._declared, self._other_count = declared, header.other_count
        return True

    cdef bint _is_as_before(self, const Header* header, uint32_t declared) noexcept:
        """Whether the fields are those of the request before, as they nearly always are."""
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

    cdef Py_ssize_t _write_signed(self, const Frame* frame, const Header* header, char* at, Passed* passed) noexcept:
        """Write what a request's signature is made of, in the order that was found; return its size, -1: no room."""
        cdef const Field* field
        cdef const char* header_end = frame.header + frame.header_size
        cdef char* start = at
        cdef Py_ssize_t room = self._content + ROOM - at - PADDING - frame.body_size, size
        cdef int number, place
        for number in range(self._count):
            place = self._order[number]
            if place < self._reader.count:
                field = &header.fields[place]
            else:
                field = &header.others[place - self._reader.count]
            if field.size + SHORT > room - (at - start):
                return -1
            if field.size <= SHORT and not field.is_escaped and header_end - field.at >= SHORT:
                memcpy(at, field.at, SHORT)  # a fixed size takes no call; what is too much is written over
                at += field.size
                continue
            size = copy_text(field, at)
            if field.is_escaped and place < self._reader.count:
                passed.copy, passed.copy_size, passed.copied = at, size, place
            at += size
        memcpy(at, frame.body, frame.body_size)
        return at + frame.body_size - start

    cdef FastAccount _account(self, const Field* name):
        """Return what is known of an account; None for an unknown one."""
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
            if secret is None:  # not remembered: a stranger could fill the memory with names
                return None
            encoded = (<str> secret).encode()
            account = FastAccount()
            account.access_key = access_key
            account.encoded = key
            account.decided = {}
            account.last = b""
            _prepare(&account.key, encoded)
            self._accounts[key] = account
        self._last = account
        return account

    cdef bint _has_right(self, FastAccount account, const Header* header) except -1:
        """Whether the account may do this to topic and group; asked of Python once for both."""
        cdef const Field* topic = &header.fields[self._topic]
        cdef const Field* group = NULL
        cdef char name[MOST_NAME]
        cdef Py_ssize_t size = topic.size + 2
        cdef PyObject* found
        if topic.is_escaped or size > MOST_NAME:
            return False
        if self._group < 0 and PyBytes_GET_SIZE(account.last) == size and is_same(
            PyBytes_AS_STRING(account.last) + 2, topic.at, topic.size
        ):
            return True
        put_u16(name, <uint16_t> topic.size)  # so that no two pairs of names are one text
        memcpy(name + 2, topic.at, topic.size)
        if self._group >= 0:
            group = &header.fields[self._group]
            if group.is_escaped or group.size > MOST_NAME - size:
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
            if len(account.decided) >= MOST_DECIDED:
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
    """Signs frames of ours as an account, as `remoting.signer` does: `added` are the fields to add but the signature."""

    cdef hmac_key _key
    cdef bytes _added
    cdef list _texts
    cdef int _own_count, _seen_count
    cdef Field _own_names[MOST_OWN]
    cdef Field _own_values[MOST_OWN]
    # In which order values are signed, for the names that came last.
    cdef char _seen[MOST_NAMES]
    cdef Py_ssize_t _seen_ends[MOST_SIGNED]
    cdef int _order[MOST_SIGNED]

    def __init__(self, str secret, list added, bytes as_json):
        encoded = secret.encode()
        _prepare(&self._key, encoded)
        self._added = as_json
        self._texts = [(name.encode(), value.encode()) for name, value in added]
        self._own_count = len(added)
        if self._own_count > MOST_OWN:
            raise ValueError(f"{self._own_count} fields to add; at most {MOST_OWN} can be")
        for number, (name, value) in enumerate(self._texts):
            _point(&self._own_names[number], name)
            _point(&self._own_values[number], value)
        self._seen_count = -1

    def sign(self, bytes frame):
        """Return a request's frame with the account and the signature; None for a header of an unusual form."""
        cdef const char* start = PyBytes_AS_STRING(frame)
        cdef const char* end
        cdef const char* p = start + 16
        cdef Field names[MOST_SIGNED]
        cdef Field values[MOST_SIGNED]
        cdef int count = 0, number
        if start[4] != 0:
            return None
        end = start + 8 + (get_u32(start + 4) & 0xFFFFFF)
        while p < end and c'0' <= p[0] <= c'9':
            p += 1
        if end - p < 15 or memcmp(p, b',"extFields":{', 14) != 0:
            return None
        p += 14
        while p[0] == c'"' and count < MOST_SIGNED - MOST_OWN - 1:
            p = json_text(p + 1, end, &names[count])
            if p == NULL or names[count].is_escaped or end - p < 4 or p[0] != c':' or p[1] != c'"':
                return None
            p = json_text(p + 2, end, &values[count])
            if p == NULL or end - p < 2:
                return None
            if not (names[count].size == 17 and memcmp(names[count].at, b"_UNIQUE_KEY_QUERY", 17) == 0):
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
        """Whether the fields are those of the frame before, as they nearly always are."""
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
        """Find the order in which values are signed."""
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
            if used + names[number].size > MOST_NAMES:
                self._seen_count = -1  # too long to be remembered
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
        # No value is longer than it was, and those that are added are among what is written in front of the signature.
        cdef char* room = <char*> malloc(end - start + added + PADDING)
        if room == NULL:
            raise MemoryError
        for number in range(count):
            at += copy_text(&values[self._order[number]], room + at)
        memcpy(room + at, body, end - body)
        at += end - body
        more = added + SIGNATURE_SIZE + 1 + (not is_first)
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
        hmac_text(&self._key, room, at, p)
        free(room)
        p += SIGNATURE_SIZE
        p[0] = c'"'
        memcpy(p + 1, fields_end, end - fields_end)
        return signed


cdef inline void _point(Field* field, bytes text) noexcept:
    field.at = PyBytes_AS_STRING(text)
    field.size = PyBytes_GET_SIZE(text)
    field.is_escaped = False
