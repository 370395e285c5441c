# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reads the headers of frequent requests without Python objects, and writes replies from templates.

Only forms that clients actually write are read, with fields in any order. Unknown members, unusual numbers, names with
escapes and repeated fields are left to the plain path (the Python code), which reads the same values from any header.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from pyromq.speedups.constants cimport *
from pyromq.speedups.kernels cimport get_u16, get_u32, plain_end, put_u32, utf8_end

cdef enum:
    LEAST_ROOM = 1 << 12  # least bytes of a buffer for replies; none before the first reply

cdef const char* _BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef const char* _DIGITS = b"0123456789ABCDEF"


cdef int code_of(const Frame* frame) noexcept nogil:
    """Return the request code if the code comes first in the header, as all clients write it; otherwise -1."""
    cdef const char* p = frame.header
    cdef int code = 0, n = 8
    if frame.serialization == BINARY_HEADER:
        return -1 if frame.header_size < 21 else <int> get_u16(p)
    if frame.header_size < 12 or memcmp(p, b'{"code":', 8) != 0 or p[8] == c'0':
        return -1
    while n < 14 and n < frame.header_size and c'0' <= p[n] <= c'9':
        code = code * 10 + (p[n] - c'0')
        n += 1
    return code if n < frame.header_size and p[n] == c',' else -1


cdef inline const char* json_blank_end(const char* p, const char* end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\t' or p[0] == c'\r'):
        p += 1
    return p


cdef inline const char* json_text(const char* p, const char* end, Field* field) noexcept nogil:
    """Read a JSON string from after its opening quote. Return the address after its closing quote.

    Return NULL for an invalid string, and for a string that the plain path must read.
    """
    cdef const char* q
    field.at = p
    field.is_escaped = False
    while True:
        p = plain_end(p, end)
        if p >= end:
            return NULL
        if p[0] == c'"':
            field.size = p - field.at
            return p + 1
        if p[0] == c'\\':
            field.is_escaped = True
            if end - p < 2:
                return NULL
            if p[1] == c'u':
                # Escapes of ASCII separate properties. Other escapes are rare: the plain path reads them.
                if end - p < 6 or p[2] != c'0' or p[3] != c'0' or not c'0' <= p[4] <= c'7' or _hex(p[5]) < 0:
                    return NULL
                p += 6
            elif p[1] in (c'"', c'\\', c'/', c'b', c'f', c'n', c'r', c't'):
                p += 2
            else:
                return NULL
        elif p[0] & 0x80:
            q = p
            while q < end and q[0] & 0x80:
                q += 1
            if utf8_end(p, q) != q:
                return NULL
            p = q
        else:  # a control character
            return NULL


cdef inline int _hex(char c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    if c'A' <= c <= c'F':
        return c - c'A' + 10
    return -1


cdef inline bint whole_number(const char* p, Py_ssize_t size, int64_t* number) noexcept nogil:
    """Read a decimal number of up to 18 digits into `number`. Return False for a plus sign or leading zeros."""
    cdef bint is_negative = False
    cdef int64_t value = 0
    if size > 0 and p[0] == c'-':
        is_negative = True
        p += 1
        size -= 1
    if size < 1 or size > 18 or (p[0] == c'0' and (size > 1 or is_negative)):
        return False
    while size:
        if not c'0' <= p[0] <= c'9':
            return False
        value = value * 10 + (p[0] - c'0')
        p += 1
        size -= 1
    number[0] = -value if is_negative else value
    return True


cdef inline const char* _bare_number(const char* p, const char* end, Field* field) noexcept nogil:
    """Read a number without quotes, as C++ clients write some fields.

    Return the address after the number; NULL if there is no valid number.
    """
    field.at = p
    field.is_escaped = False
    while p < end and (c'0' <= p[0] <= c'9' or p[0] == c'-'):
        p += 1
    field.size = p - field.at
    return p if whole_number(field.at, field.size, &field.number) else NULL


cdef inline const char* json_int(const char* p, const char* end, int* number) noexcept nogil:
    cdef const char* start = p
    cdef int64_t value
    while p < end and (c'0' <= p[0] <= c'9' or p[0] == c'-'):
        p += 1
    if not whole_number(start, p - start, &value) or value != <int> value:
        return NULL
    number[0] = <int> value
    return p


cdef Py_ssize_t copy_text(const Field* field, char* target) noexcept nogil:
    """Write a field without JSON escapes to `target`; return the size in bytes, at most the size of the field."""
    cdef const char* p = field.at
    cdef const char* end = p + field.size
    cdef const char* q
    cdef char* out = target
    cdef char c
    if not field.is_escaped:
        memcpy(target, p, field.size)
        return field.size
    while p < end:
        q = <const char*> memchr(p, c'\\', end - p)
        if q == NULL:
            q = end
        memcpy(out, p, q - p)
        out += q - p
        p = q
        if p == end:
            break
        c = p[1]
        if c == c'u':
            out[0] = <char> (_hex(p[4]) << 4 | _hex(p[5]))
            p += 6
        else:
            if c == c'n':
                c = c'\n'
            elif c == c't':
                c = c'\t'
            elif c == c'r':
                c = c'\r'
            elif c == c'b':
                c = 8
            elif c == c'f':
                c = 12
            out[0] = c
            p += 2
        out += 1
    return out - target


cdef object text_of(const Field* field):
    """Return a field as `str`; None if the request does not have the field."""
    cdef Py_ssize_t size
    if field.at == NULL:
        return None
    if not field.is_escaped:
        return field.at[: field.size].decode("utf-8")
    cdef char* copy = <char*> malloc(field.size)
    if copy == NULL:
        raise MemoryError
    try:
        size = copy_text(field, copy)
        return copy[:size].decode("utf-8")
    finally:
        free(copy)


cdef class HeaderReader:
    """Reads headers of one request code. `layout` has for each field: wire name; "int", "bool" or "str"; required."""

    def __init__(self, int code, layout):
        self.code = code
        self.count = len(layout)
        if self.count > MAX_FIELDS:
            raise ValueError(f"a header of {self.count} fields; at most {MAX_FIELDS} can be read")
        self._names = [name.encode() for name, _, _ in layout]
        self.max_name_size = max(map(len, self._names), default=0)
        for number, (name, kind, is_required) in enumerate(layout):
            self.names[number] = PyBytes_AS_STRING(self._names[number])
            self.name_sizes[number] = PyBytes_GET_SIZE(self._names[number])
            self.kinds[number] = ord(kind[0])
            self.required[number] = is_required

    def values(self, int serialization, bytes header):
        """Return opaque, flag, version and the list of field values; an absent field is None.

        Return None if the plain path must read the header.
        """
        cdef Frame frame
        cdef Header found
        frame.header = PyBytes_AS_STRING(header)
        frame.header_size = PyBytes_GET_SIZE(header)
        frame.serialization = serialization
        if code_of(&frame) != self.code or not self.read(&frame, &found):
            return None
        return found.opaque, found.flag, found.version, self.found(&found)

    cdef list found(self, const Header* header):
        """Return the field values of a header that `read` has read; None for an absent field."""
        cdef list fields = []
        for number in range(self.count):
            if header.fields[number].at == NULL:
                fields.append(None)
            elif self.kinds[number] == c's':
                fields.append(text_of(&header.fields[number]))
            else:
                value = header.fields[number].number
                fields.append(bool(value) if self.kinds[number] == c'b' else value)
        return fields

    cdef bint read(self, const Frame* frame, Header* header) noexcept nogil:
        """Read the header of a request with this code into `header`. Return False if the plain path must read it."""
        cdef const char* end = frame.header + frame.header_size
        cdef int number
        if frame.header_size > MAX_HEADER_BYTES:  # the plain path refuses such a header
            return False
        for number in range(self.count):
            header.fields[number].at = NULL
        header.code = self.code
        header.serialization = frame.serialization
        header.opaque = header.flag = header.version = header.other_count = 0
        header.declared = 0
        if frame.serialization == JSON_HEADER:
            if not self._read_json(frame.header, end, header):
                return False
        elif frame.serialization != BINARY_HEADER or not self._read_binary(frame.header, end, header):
            return False
        return not header.flag & RESPONSE and self._fits(header)

    cdef bint _read_json(self, const char* p, const char* end, Header* header) noexcept nogil:
        cdef Field name, value
        cdef bint has_fields = False
        p += 8  # skip `{"code":`: the code is known
        while c'0' <= p[0] <= c'9':
            p += 1
        while True:
            p = json_blank_end(p, end)
            if p >= end:
                return False
            if p[0] == c'}':
                return has_fields and json_blank_end(p + 1, end) == end
            if p[0] != c',':
                return False
            p = json_blank_end(p + 1, end)
            if p >= end or p[0] != c'"':
                return False
            p = json_text(p + 1, end, &name)
            if p == NULL or name.is_escaped:
                return False
            p = json_blank_end(p, end)
            if p >= end or p[0] != c':':
                return False
            p = json_blank_end(p + 1, end)
            if p >= end:
                return False
            if name.size == 9 and memcmp(name.at, b"extFields", 9) == 0:
                if has_fields or p[0] != c'{':
                    return False
                p = self._read_json_fields(p + 1, end, header)
                has_fields = True
            elif name.size == 6 and memcmp(name.at, b"opaque", 6) == 0:
                p = json_int(p, end, &header.opaque)
            elif name.size == 4 and memcmp(name.at, b"flag", 4) == 0:
                p = json_int(p, end, &header.flag)
            elif name.size == 7 and memcmp(name.at, b"version", 7) == 0:
                p = json_int(p, end, &header.version)
            elif (
                (name.size == 8 and memcmp(name.at, b"language", 8) == 0)
                or (name.size == 6 and memcmp(name.at, b"remark", 6) == 0)  # Go and C++ clients send an empty remark
                or (name.size == 23 and memcmp(name.at, b"serializeTypeCurrentRPC", 23) == 0)
            ):
                if p[0] != c'"':
                    return False
                p = json_text(p + 1, end, &value)
            else:
                return False
            if p == NULL:
                return False

    cdef const char* _read_json_fields(self, const char* p, const char* end, Header* header) noexcept nogil:
        cdef Field name, value
        cdef int slot, hint = 0
        cdef bint is_bare
        p = json_blank_end(p, end)
        if p < end and p[0] == c'}':
            return p + 1
        while p < end and p[0] == c'"':
            p = json_text(p + 1, end, &name)
            if p == NULL or name.is_escaped:
                return NULL
            p = json_blank_end(p, end)
            if p >= end or p[0] != c':':
                return NULL
            p = json_blank_end(p + 1, end)
            if p >= end:
                return NULL
            is_bare = p[0] != c'"'
            p = _bare_number(p, end, &value) if is_bare else json_text(p + 1, end, &value)
            if p == NULL:
                return NULL
            slot = self._slot(name.at, name.size, hint)
            if slot >= 0:
                if header.fields[slot].at != NULL or (is_bare and self.kinds[slot] != c'i'):
                    return NULL
                header.fields[slot] = value
                header.declared |= <uint32_t> 1 << slot
                hint = slot + 1
            else:
                if header.other_count < MAX_OTHERS:
                    header.other_names[header.other_count] = name
                    header.others[header.other_count] = value
                header.other_count += 1
            p = json_blank_end(p, end)
            if p >= end:
                return NULL
            if p[0] == c'}':
                return p + 1
            if p[0] != c',':
                return NULL
            p = json_blank_end(p + 1, end)
        return NULL

    cdef bint _read_binary(self, const char* p, const char* end, Header* header) noexcept nogil:
        cdef int64_t size, name_size
        cdef int slot, hint = 0
        cdef const char* name
        header.version = <short> get_u16(p + 3)
        header.opaque = <int> get_u32(p + 5)
        header.flag = <int> get_u32(p + 9)
        if get_u32(p + 13) != 0 or end - p - 21 != get_u32(p + 17):  # a request with a remark is unusual
            return False
        p += 21
        while p < end:
            if end - p < 2:
                return False
            name_size = get_u16(p)
            if name_size > 0x7FFF or end - p < 6 + name_size:
                return False
            name = p + 2
            p = name + name_size
            size = get_u32(p)
            p += 4
            if size > end - p or utf8_end(p, p + size) != p + size or utf8_end(name, name + name_size) != name + name_size:
                return False
            if size:  # an empty value counts as absent
                slot = self._slot(name, name_size, hint)
                if slot >= 0:
                    if header.fields[slot].at != NULL:
                        return False
                    header.fields[slot].at = p
                    header.fields[slot].size = size
                    header.fields[slot].is_escaped = False
                    header.declared |= <uint32_t> 1 << slot
                    hint = slot + 1
                else:
                    if header.other_count < MAX_OTHERS:
                        header.other_names[header.other_count].at = name
                        header.other_names[header.other_count].size = name_size
                        header.other_names[header.other_count].is_escaped = False
                        header.others[header.other_count].at = p
                        header.others[header.other_count].size = size
                        header.others[header.other_count].is_escaped = False
                    header.other_count += 1
            p += size
        return True

    cdef int _slot(self, const char* name, Py_ssize_t size, int hint) noexcept nogil:
        """Return the number of the field with a name; -1 for an unknown name. `hint` is the number tried first."""
        cdef int number
        if size > self.max_name_size:  # a long name, such as Signature among names of one letter
            return -1
        for number in range(hint, self.count):
            if self.name_sizes[number] == size and memcmp(self.names[number], name, size) == 0:
                return number
        for number in range(min(hint, self.count)):
            if self.name_sizes[number] == size and memcmp(self.names[number], name, size) == 0:
                return number
        return -1

    cdef bint _fits(self, Header* header) noexcept nogil:
        """Read the numbers and booleans of a header. Return False if one is invalid or a required field is missing."""
        cdef int number
        cdef Field* field
        for number in range(self.count):
            field = &header.fields[number]
            if field.at == NULL:
                if self.required[number]:
                    return False
            elif self.kinds[number] == c'i':
                if not whole_number(field.at, field.size, &field.number):
                    return False
            elif self.kinds[number] == c'b':
                if field.size == 4 and memcmp(field.at, b"true", 4) == 0:
                    field.number = 1
                elif field.size == 5 and memcmp(field.at, b"false", 5) == 0:
                    field.number = 0
                else:
                    return False
        return True


cdef class Output:
    """A buffer of bytes to send to a peer. The unsent bytes are `data` from `begin` to `end`."""

    def __cinit__(self):
        self.room = 0  # no buffer before the first bytes, as most connections are idle
        self.begin = self.end = 0
        self.data = NULL

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.end - self.begin

    def __bytes__(self):
        return self.data[self.begin : self.end]

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Make room for `size` more bytes. Raises `MemoryError`."""
        cdef Py_ssize_t room = self.room
        cdef char* data
        if self.end + size <= room:
            return 0
        if self.begin:
            memmove(self.data, self.data + self.begin, self.end - self.begin)
            self.end -= self.begin
            self.begin = 0
        if self.end + size > room:
            room = max(room, <Py_ssize_t> LEAST_ROOM)
            while self.end + size > room:
                room *= 2
            data = <char*> realloc(self.data, room)
            if data == NULL:
                raise MemoryError
            self.data = data
            self.room = room
        return 0

    cdef void shrink(self, Py_ssize_t most) noexcept:
        """Shrink the buffer to `most` bytes after large replies. The buffer must have no unsent bytes."""
        cdef char* data
        if self.room > most:
            data = <char*> realloc(self.data, most)
            if data != NULL:
                self.data = data
                self.room = most

    cdef int append(self, const char* data, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.data + self.end, data, size)
        self.end += size
        return 0


cdef class ReplyWriter:
    """Writes the replies of a `ReplyTemplate`: JSON headers from its `line`, binary headers from its `binary()`.

    Holes are `%d`, `%016X` and `%b`, whose value is the address of a `Text`. `%%` is a percent sign. The last hole of
    `line` is the opaque (the request's number).
    """

    def __init__(self, bytes line, binary):
        head, entries = binary
        texts, kinds = _holes(line)
        if len(kinds) > 8 or len(entries) > 16:
            raise ValueError(f"a reply of {len(kinds)} holes and {len(entries)} fields; at most 8 and 16 can be written")
        self._held = [texts, head]
        self.count = len(kinds)
        for number, text in enumerate(texts):
            self.texts[number] = PyBytes_AS_STRING(text)
            self.text_sizes[number] = PyBytes_GET_SIZE(text)
        for number, kind in enumerate(kinds):
            self.kinds[number] = ord(kind[-1:])
        self.head = PyBytes_AS_STRING(head)
        self.head_size = PyBytes_GET_SIZE(head)
        self.entry_count = len(entries)
        for place, (key, text, number) in enumerate(entries):
            kind = b" "
            if number >= 0:
                [text, _], [kind] = _holes(text)
            both = key + text
            self._held.append(both)
            self.entries[place].text = PyBytes_AS_STRING(both)
            self.entries[place].text_size = PyBytes_GET_SIZE(both)
            self.entries[place].key_size = PyBytes_GET_SIZE(key)
            self.entries[place].kind = ord(kind[-1:])
            self.entries[place].number = number
        in_binary = len(head) + 4 + sum(map(len, self._held[2:])) + 24 * len(entries)
        self.most = max(sum(map(len, texts)) + 20 * len(kinds), in_binary) + 8

    def frame(self, values, int opaque, Py_ssize_t body_size=0, int serialization=JSON_HEADER):
        """Return the frame that `write` appends. For tests."""
        cdef int64_t numbers[8]
        cdef Text texts[8]
        cdef Output output = Output()
        cdef Header request
        request.serialization = serialization
        request.opaque = opaque
        if len(values) != max(self.count - 1, 0):
            raise ValueError(f"{len(values)} values for {self.count} holes, one of them the opaque's")
        for number, value in enumerate(values):
            if isinstance(value, bytes):
                texts[number].at = PyBytes_AS_STRING(value)
                texts[number].size = PyBytes_GET_SIZE(value)
                numbers[number] = <int64_t> &texts[number]
            else:
                numbers[number] = value
        self.write(output, numbers, &request, body_size)
        return bytes(output)

    cdef char* write(
        self, Output output, const int64_t* values, const Header* request, Py_ssize_t body_size
    ) except NULL:
        """Append the reply frame of a request, without its body.

        Return the address of the body, where `body_size` bytes have room.
        """
        cdef char* start
        cdef char* p
        cdef int number
        cdef Py_ssize_t size = self.most + body_size
        for number in range(self.count):
            if self.kinds[number] == c'b':
                size += (<const Text*> values[number]).size
        output.reserve(size)
        start = output.data + output.end
        if request.serialization == JSON_HEADER:
            p = self._write_json(start + 8, values, request.opaque)
        else:
            p = self._write_binary(start + 8, values, request.opaque)
        put_u32(start, <unsigned int> (p - start - 4 + body_size))
        put_u32(start + 4, <unsigned int> (request.serialization << 24 | (p - start - 8)))
        output.end += p - start
        return p

    cdef char* _write_json(self, char* p, const int64_t* values, int opaque) noexcept:
        cdef int number
        for number in range(self.count):
            memcpy(p, self.texts[number], self.text_sizes[number])
            p += self.text_sizes[number]
            if self.kinds[number] == c'X':
                p = write_hex(p, <uint64_t> values[number])
            elif self.kinds[number] == c'b':
                p = _write_text(p, <const Text*> values[number])
            else:
                p = write_number(p, values[number] if number < self.count - 1 else opaque)
        memcpy(p, self.texts[self.count], self.text_sizes[self.count])
        return p + self.text_sizes[self.count]

    cdef char* _write_binary(self, char* p, const int64_t* values, int opaque) noexcept:
        cdef char* fields
        cdef char* value
        cdef Entry* entry
        cdef int place
        memcpy(p, self.head, self.head_size)
        put_u32(p + 5, <unsigned int> opaque)
        p += self.head_size + 4
        fields = p
        for place in range(self.entry_count):
            entry = &self.entries[place]
            memcpy(p, entry.text, entry.key_size)
            p += entry.key_size + 4
            value = p
            memcpy(p, entry.text + entry.key_size, entry.text_size - entry.key_size)
            p += entry.text_size - entry.key_size
            if entry.kind == c'X':
                p = write_hex(p, <uint64_t> values[entry.number])
            elif entry.kind == c'd':
                p = write_number(p, values[entry.number])
            elif entry.kind == c'b':
                p = _write_text(p, <const Text*> values[entry.number])
            put_u32(value - 4, <unsigned int> (p - value))
        put_u32(fields - 4, <unsigned int> (p - fields))
        return p


def _holes(bytes line):
    """Return the parts between the holes of a template, and the kind of each hole (b"d", b"b" or b"016X")."""
    texts, kinds = [], []
    rest, text = line, b""
    while True:
        before, found, rest = rest.partition(b"%")
        text += before
        if not found:
            return [*texts, text], kinds
        if rest.startswith(b"%"):
            text += b"%"
            rest = rest[1:]
            continue
        kind = rest[:1] if rest[:1] in (b"d", b"b") else b"016X"
        if not rest.startswith(kind):
            raise ValueError(f"not a template of a reply: {line!r}")
        texts.append(text)
        kinds.append(kind)
        rest, text = rest[len(kind):], b""


cdef char* write_hex(char* p, uint64_t value) noexcept nogil:
    cdef int number
    for number in range(16):
        p[15 - number] = _DIGITS[value & 15]
        value >>= 4
    return p + 16


cdef inline char* _write_text(char* p, const Text* text) noexcept nogil:
    memcpy(p, text.at, text.size)
    return p + text.size


cdef inline char* write_number(char* p, int64_t number) noexcept nogil:
    cdef char digits[20]
    cdef int count = 0
    cdef uint64_t value = <uint64_t> number
    if number < 0:
        p[0] = c'-'
        p += 1
        value = 0 - value
    while True:
        digits[count] = <char> (c'0' + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    while count:
        count -= 1
        p[0] = digits[count]
        p += 1
    return p


cdef char* write_base64(const char* data, Py_ssize_t size, char* out) noexcept nogil:
    """Write bytes as Base64 to `out`. Return the address after the Base64 text."""
    cdef const unsigned char* p = <const unsigned char*> data
    cdef uint32_t bits
    while size >= 3:
        bits = <uint32_t> p[0] << 16 | <uint32_t> p[1] << 8 | p[2]
        out[0] = _BASE64[bits >> 18]
        out[1] = _BASE64[bits >> 12 & 63]
        out[2] = _BASE64[bits >> 6 & 63]
        out[3] = _BASE64[bits & 63]
        p += 3
        out += 4
        size -= 3
    if size:
        bits = <uint32_t> p[0] << 16 | (<uint32_t> p[1] << 8 if size == 2 else 0)
        out[0] = _BASE64[bits >> 18]
        out[1] = _BASE64[bits >> 12 & 63]
        out[2] = _BASE64[bits >> 6 & 63] if size == 2 else c'='
        out[3] = c'='
        out += 4
    return out
