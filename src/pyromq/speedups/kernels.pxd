from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

cdef extern from "kernels.h" nogil:
    void put_u16(char* p, uint16_t v)
    void put_u32(char* p, uint32_t v)
    void put_u64(char* p, uint64_t v)
    uint16_t get_u16(const char* p)
    uint32_t get_u32(const char* p)
    uint64_t get_u64(const char* p)
    const char* plain_end(const char* p, const char* end)
    const char* utf8_end(const char* p, const char* end)
    void crc32_setup()
    uint32_t crc32_of(const char* p, size_t size)
    void crc16_setup()
    uint16_t crc16_of(uint16_t crc, const char* p, size_t size)
    uint32_t java_hash_on(uint32_t hash, const char* p, const char* end)
    bint is_same(const char* a, const char* b, size_t size)
    bint ends_with(const char* text, const char* p, const char* name, size_t size)
    void prefetch(const void* p)
