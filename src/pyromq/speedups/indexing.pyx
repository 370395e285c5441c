# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Adds the keys of log records to an index file, as `pyromq.store.index` does, for ordinary records.

A record is ordinary if its lengths agree, its log offset is right, and the file has space for all of its keys. Indexing
stops before any other record: then the plain path (the Python code) reports the fault, allocates, or begins a new file.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from pyromq.speedups.constants cimport *
from pyromq.speedups.decoding cimport Record, find_record
from pyromq.speedups.kernels cimport get_u32, get_u64, java_hash_on, put_u32, put_u64, utf8_end

cdef extern from *:
    """
    /* Keeps the order of writes: if the process is killed between two writes, the file stays valid. */
    #define PYROMQ_IN_ORDER() __asm__ __volatile__("" ::: "memory")
    """
    void in_order "PYROMQ_IN_ORDER"() noexcept nogil

cdef enum:
    MAX_KEYS = 16400  # limit of keys of a record: properties have 32 KiB, and keys are separated by a blank
    KEYS_OF_ONE = 32  # number of keys that take as long to index as one more record
    INT_MAX = 0x7FFFFFFF

cdef uint32_t _HASHES[MAX_KEYS]  # key hashes of the record being indexed


cdef class IndexTail:
    """See `pyromq.store.index.index_file`. Without a file, only records without keys are ordinary."""

    cdef public object file
    cdef public int64_t begin_ms
    cdef public int64_t end_ms
    cdef public int64_t begin_log_offset
    cdef public int64_t end_log_offset
    cdef public int64_t used_slots
    cdef public int64_t next_entry
    cdef public int64_t slots
    cdef public int64_t entries
    cdef public int64_t entries_at
    cdef public int64_t reserved_end
    cdef public int64_t stretch_bytes
    cdef public bytearray ready

    def enter(self, records, *, int64_t log_offset, int64_t last_store_ms, int most, bytes skipped):
        cdef Py_buffer source, target
        PyObject_GetBuffer(records, &source, PyBUF_SIMPLE)
        try:
            if self.file is None:
                return self._enter_all(<const char*> source.buf, source.len, NULL, log_offset, last_store_ms, most,
                                       skipped)
            PyObject_GetBuffer(self.file.memory, &target, PyBUF_SIMPLE)
            try:
                if target.readonly or target.len < self.entries_at + self.entries * INDEX_ENTRY_BYTES:
                    return log_offset, 0
                return self._enter_all(<const char*> source.buf, source.len, <char*> target.buf, log_offset,
                                       last_store_ms, most, skipped)
            finally:
                PyBuffer_Release(&target)
        finally:
            PyBuffer_Release(&source)

    cdef tuple _enter_all(self, const char* p, int64_t left, char* file, int64_t log_offset, int64_t last_store_ms,
                          int most, bytes skipped):
        cdef const char* topic = skipped
        cdef Py_ssize_t topic_size = len(skipped)
        cdef Record record
        cdef int count = 0, keys
        while count < most and find_record(p, left, False, &record):
            if record.topic_size != topic_size or memcmp(record.topic, topic, topic_size) != 0:
                if log_offset_of(&record) != log_offset or not 0 <= store_ms_of(&record) <= last_store_ms:
                    break
                keys = self._enter(file, &record)
                if keys < 0:
                    break
                count += keys // KEYS_OF_ONE
            p += record.size
            left -= record.size
            log_offset += record.size
            count += 1
        return log_offset, count

    cdef int _enter(self, char* file, const Record* record) noexcept:
        """Add an entry for each key of a record. Return the number of keys.

        Return -1, with nothing written, if the file has no space or the record is unusual.
        """
        cdef uint32_t* hashes = _HASHES
        cdef int number, count
        if not is_utf8(record.topic, record.topic_size) or not is_utf8(record.properties, record.properties_size):
            return -1
        if get_u32(record.at + RECORD_SYS_FLAG_AT) & ROLLBACK == ROLLBACK:
            return 0
        count = find_hashes(record, hashes)
        if count < 0 or (count and not self._is_ready(file, hashes, count)):
            return -1
        for number in range(count):
            self._put(file, hashes[number], record)
        if count:
            in_order()
            self._write_header(file)
        return count

    cdef bint _is_ready(self, char* file, const uint32_t* hashes, int count) noexcept:
        """Return True if `count` entries have disk space and no chain has an entry that the header does not count."""
        cdef const char* ready
        cdef int64_t slot_at
        cdef int number
        if file == NULL or self.next_entry < 1 or self.next_entry + count > self.entries:
            return False
        ready = self.ready
        if not ready[0]:
            return False
        if self.entries_at + (self.next_entry + count) * INDEX_ENTRY_BYTES > self.reserved_end:
            return False
        for number in range(count):
            slot_at = INDEX_HEADER_BYTES + hashes[number] % <uint32_t> self.slots * INDEX_SLOT_BYTES
            if not ready[slot_at // self.stretch_bytes]:
                return False
            if <int32_t> get_u32(file + slot_at) >= self.next_entry:
                return False
        return True

    cdef void _put(self, char* file, uint32_t key_hash, const Record* record) noexcept:
        cdef int64_t number = self.next_entry
        cdef char* slot = file + INDEX_HEADER_BYTES + key_hash % <uint32_t> self.slots * INDEX_SLOT_BYTES
        cdef char* entry = file + self.entries_at + number * INDEX_ENTRY_BYTES
        cdef int32_t previous = <int32_t> get_u32(slot)
        cdef int64_t log_offset = log_offset_of(record), store_ms = store_ms_of(record)
        cdef int64_t seconds = 0
        if not 0 < previous < number:
            previous = 0
            self.used_slots += 1
        if 0 < self.begin_ms < store_ms:
            seconds = (store_ms - self.begin_ms) // 1000
            if seconds > INT_MAX:
                seconds = INT_MAX
        put_u32(entry, key_hash)
        put_u64(entry + INDEX_ENTRY_LOG_OFFSET_AT, log_offset)
        put_u32(entry + INDEX_ENTRY_SECONDS_AT, <uint32_t> seconds)
        put_u32(entry + INDEX_ENTRY_PREVIOUS_AT, <uint32_t> previous)
        in_order()
        put_u32(slot, <uint32_t> number)
        in_order()
        if number <= 1:
            self.begin_ms = store_ms
            self.begin_log_offset = log_offset
        self.end_ms = store_ms
        self.end_log_offset = log_offset
        self.next_entry = number + 1

    cdef void _write_header(self, char* file) noexcept:
        cdef char header[INDEX_HEADER_BYTES]
        put_u64(header + INDEX_HEADER_BEGIN_MS_AT, self.begin_ms)
        put_u64(header + INDEX_HEADER_END_MS_AT, self.end_ms)
        put_u64(header + INDEX_HEADER_BEGIN_LOG_OFFSET_AT, self.begin_log_offset)
        put_u64(header + INDEX_HEADER_END_LOG_OFFSET_AT, self.end_log_offset)
        put_u32(header + INDEX_HEADER_USED_SLOTS_AT, <uint32_t> self.used_slots)
        put_u32(header + INDEX_HEADER_NEXT_ENTRY_AT, <uint32_t> self.next_entry)
        memcpy(file, header, INDEX_HEADER_BYTES)


cdef inline int64_t log_offset_of(const Record* record) noexcept nogil:
    return <int64_t> get_u64(record.at + RECORD_LOG_OFFSET_AT)


cdef inline int64_t store_ms_of(const Record* record) noexcept nogil:
    return <int64_t> get_u64(record.stored)


cdef bint is_utf8(const char* p, Py_ssize_t size) noexcept:
    cdef const char* end = p + size
    cdef uint64_t word
    while end - p >= 8:
        memcpy(&word, p, 8)
        if word & <uint64_t> 0x8080808080808080:
            break
        p += 8
    return utf8_end(p, end) == end


cdef int find_hashes(const Record* record, uint32_t* hashes) noexcept:
    """Write the hashes of a record's keys: unique id, then the words of KEYS. Return their number; -1 for too many."""
    cdef const char* p = record.properties
    cdef const char* end = p + record.properties_size
    cdef const char* unique = NULL
    cdef const char* keys = NULL
    cdef const char* unique_end = NULL
    cdef const char* keys_end = NULL
    cdef const char* pair_end
    cdef const char* value
    cdef uint32_t start
    cdef int count = 0
    while p < end:
        pair_end = <const char*> memchr(p, PAIRS, end - p)
        if pair_end == NULL:
            pair_end = end
        value = <const char*> memchr(p, NAME_VALUE, pair_end - p)
        if value != NULL and value + 1 < pair_end:
            if value - p == UNIQUE_KEY_SIZE and memcmp(p, UNIQUE_KEY, UNIQUE_KEY_SIZE) == 0:
                unique, unique_end = value + 1, pair_end
            elif value - p == KEYS_SIZE and memcmp(p, KEYS, KEYS_SIZE) == 0:
                keys, keys_end = value + 1, pair_end
        p = pair_end + 1
    if unique == NULL and keys == NULL:
        return 0
    start = java_hash_on(0, record.topic, record.topic + record.topic_size) * 31 + c"#"
    if unique != NULL:
        hashes[0] = index_hash(java_hash_on(start, unique, unique_end))
        count = 1
    while keys != NULL and keys < keys_end:
        pair_end = <const char*> memchr(keys, c" ", keys_end - keys)
        if pair_end == NULL:
            pair_end = keys_end
        if pair_end > keys:
            if count == MAX_KEYS:
                return -1
            hashes[count] = index_hash(java_hash_on(start, keys, pair_end))
            count += 1
        keys = pair_end + 1
    return count


cdef uint32_t index_hash(uint32_t code) noexcept:
    """Return the hash that index files hold: the absolute value of a Java hash; 0 for -2^31."""
    return (0 - code) & INT_MAX if code & <uint32_t> 0x80000000 else code
