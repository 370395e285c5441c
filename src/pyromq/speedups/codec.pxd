from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    MAX_FIELDS = 24
    MAX_OTHERS = 8

cdef struct Frame:  # one complete request frame
    const char* header
    Py_ssize_t header_size
    const char* body
    Py_ssize_t body_size
    int serialization

cdef struct Field:  # a header field as received; `at` is NULL if absent; `is_escaped`: the bytes have JSON escapes
    const char* at
    Py_ssize_t size
    bint is_escaped
    int64_t number  # value of a field that is a number or boolean

cdef struct Header:
    int serialization
    int code
    int opaque
    int flag
    int version
    Field fields[MAX_FIELDS]
    uint32_t declared  # bit n is set if field n was received
    int other_count  # number of undeclared fields, such as Signature; the arrays hold the first MAX_OTHERS
    Field other_names[MAX_OTHERS]
    Field others[MAX_OTHERS]

cdef class HeaderReader:
    cdef readonly int code
    cdef int count
    cdef const char* names[MAX_FIELDS]
    cdef Py_ssize_t name_sizes[MAX_FIELDS]
    cdef Py_ssize_t max_name_size
    cdef char kinds[MAX_FIELDS]
    cdef bint required[MAX_FIELDS]
    cdef object _names
    cdef bint read(self, const Frame* frame, Header* header) noexcept nogil
    cdef list found(self, const Header* header)
    cdef int _slot(self, const char* name, Py_ssize_t size, int hint) noexcept nogil
    cdef const char* _read_json_fields(self, const char* p, const char* end, Header* header) noexcept nogil
    cdef bint _read_json(self, const char* p, const char* end, Header* header) noexcept nogil
    cdef bint _read_binary(self, const char* p, const char* end, Header* header) noexcept nogil
    cdef bint _fits(self, Header* header) noexcept nogil

cdef int code_of(const Frame* frame) noexcept nogil
cdef const char* json_blank_end(const char* p, const char* end) noexcept nogil
cdef const char* json_text(const char* p, const char* end, Field* field) noexcept nogil
cdef const char* json_int(const char* p, const char* end, int* number) noexcept nogil
cdef bint whole_number(const char* p, Py_ssize_t size, int64_t* number) noexcept nogil
cdef char* write_number(char* p, int64_t number) noexcept nogil
cdef char* write_hex(char* p, uint64_t value) noexcept nogil
cdef char* write_base64(const char* data, Py_ssize_t size, char* out) noexcept nogil
cdef Py_ssize_t copy_text(const Field* field, char* target) noexcept nogil
cdef object text_of(const Field* field)

cdef class Output:  # bytes to send; `data` from `begin` to `end` is unsent
    cdef char* data
    cdef Py_ssize_t begin
    cdef Py_ssize_t end
    cdef Py_ssize_t room
    cdef int reserve(self, Py_ssize_t size) except -1
    cdef int append(self, const char* data, Py_ssize_t size) except -1
    cdef void shrink(self, Py_ssize_t most) noexcept

cdef struct Entry:  # a field of a binary header: text before the value, kind of the value, its number (-1: no value)
    const char* text
    Py_ssize_t text_size
    Py_ssize_t key_size  # bytes of `text` for the name with its length; the other bytes begin the value
    char kind
    int number

cdef struct Text:
    const char* at
    Py_ssize_t size

cdef class ReplyWriter:
    cdef list _held
    cdef int count
    cdef const char* texts[8]
    cdef Py_ssize_t text_sizes[8]
    cdef char kinds[8]
    cdef Py_ssize_t most
    cdef const char* head
    cdef Py_ssize_t head_size
    cdef int entry_count
    cdef Entry entries[16]
    cdef char* write(
        self, Output output, const int64_t* values, const Header* request, Py_ssize_t body_size
    ) except NULL
    cdef char* _write_json(self, char* p, const int64_t* values, int opaque) noexcept
    cdef char* _write_binary(self, char* p, const int64_t* values, int opaque) noexcept
