/* Loops over bytes that compilers do not vectorize well: searching, checksums, UTF-8, big-endian numbers.

   Plain C with SSE2 and carry-less multiplication where the processor has them; every function also has a plain form.
   No function reads outside [p, end). */

#ifndef PYROMQ_KERNELS_H
#define PYROMQ_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static inline void put_u16(char *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void put_u32(char *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void put_u64(char *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
static inline uint16_t get_u16(const char *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t get_u32(const char *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t get_u64(const char *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }

/* Returns the first quote, backslash, control character or non-ASCII byte; `end` if there is none. */
static inline const char *plain_end(const char *p, const char *end) {
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(0x20);
    while (end - p >= 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)p);
        /* A signed comparison: bytes beyond ASCII are below a space, too. */
        __m128i odd = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash)),
                                   _mm_cmplt_epi8(v, space));
        unsigned mask = (unsigned)_mm_movemask_epi8(odd);
        if (mask) return p + __builtin_ctz(mask);
        p += 16;
    }
#endif
    while (p < end && *p != '"' && *p != '\\' && (signed char)*p >= 0x20) p++;
    return p;
}

/* Returns the first byte that is not well-formed UTF-8 (no surrogates, no overlong forms); `end` if all bytes are. */
static inline const char *utf8_end(const char *p, const char *end) {
    while (p < end) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x80) { p++; continue; }
        ptrdiff_t left = end - p;
#define PYROMQ_TAIL(i) (((unsigned char)p[i] & 0xC0) == 0x80)
        if (c >= 0xC2 && c <= 0xDF) {
            if (left < 2 || !PYROMQ_TAIL(1)) return p;
            p += 2;
        } else if (c >= 0xE0 && c <= 0xEF) {
            if (left < 3 || !PYROMQ_TAIL(1) || !PYROMQ_TAIL(2)) return p;
            unsigned char d = (unsigned char)p[1];
            if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F)) return p;
            p += 3;
        } else if (c >= 0xF0 && c <= 0xF4) {
            if (left < 4 || !PYROMQ_TAIL(1) || !PYROMQ_TAIL(2) || !PYROMQ_TAIL(3)) return p;
            unsigned char d = (unsigned char)p[1];
            if ((c == 0xF0 && d < 0x90) || (c == 0xF4 && d > 0x8F)) return p;
            p += 4;
        } else {
            return p;
        }
#undef PYROMQ_TAIL
    }
    return p;
}

/* Returns Java's string hash of UTF-16 code units, continued from `hash`. The text must be well-formed UTF-8. */
static inline uint32_t java_hash_on(uint32_t hash, const char *p, const char *end) {
    while (p < end) {
        uint32_t c = (unsigned char)*p;
        if (c < 0x80) {
            hash = hash * 31 + c;
            p += 1;
        } else if (c < 0xE0) {
            hash = hash * 31 + ((c & 0x1F) << 6 | (p[1] & 0x3F));
            p += 2;
        } else if (c < 0xF0) {
            hash = hash * 31 + ((c & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F));
            p += 3;
        } else { /* two UTF-16 code units */
            c = ((c & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F)) - 0x10000;
            hash = hash * 31 + (0xD800 | c >> 10);
            hash = hash * 31 + (0xDC00 | (c & 0x3FF));
            p += 4;
        }
    }
    return hash;
}

/* Starts loading a cache line that will be written. No access: any address is allowed. */
static inline void prefetch(const void *p) {
    __builtin_prefetch(p, 1);
}

/* Returns whether two texts of one size are equal. Faster than a call of `memcmp` for short names. */
static inline int is_same(const char *a, const char *b, size_t size) {
    if (size > 16) return memcmp(a, b, size) == 0;
    if (size >= 8) {
        uint64_t p[2], q[2];
        memcpy(&p[0], a, 8); memcpy(&p[1], a + size - 8, 8);
        memcpy(&q[0], b, 8); memcpy(&q[1], b + size - 8, 8);
        return ((p[0] ^ q[0]) | (p[1] ^ q[1])) == 0;
    }
    if (size >= 4) {
        uint32_t p[2], q[2];
        memcpy(&p[0], a, 4); memcpy(&p[1], a + size - 4, 4);
        memcpy(&q[0], b, 4); memcpy(&q[1], b + size - 4, 4);
        return ((p[0] ^ q[0]) | (p[1] ^ q[1])) == 0;
    }
    while (size) {
        size--;
        if (a[size] != b[size]) return 0;
    }
    return 1;
}

/* Returns whether the bytes from `text` to `p` end with a name. */
static inline int ends_with(const char *text, const char *p, const char *name, size_t size) {
    return (size_t)(p - text) >= size && p[-1] == name[size - 1] && memcmp(p - size, name, size) == 0;
}

/* CRC-32 as zlib computes it, by eight tables; `crc32_setup` fills them once. */
static uint32_t crc32_tables[8][256];
static int crc32_has_clmul = 0;

static void crc32_setup(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        crc32_tables[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++)
            crc32_tables[k][n] = crc32_tables[0][crc32_tables[k - 1][n] & 0xFF] ^ (crc32_tables[k - 1][n] >> 8);
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    crc32_has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

/* Returns the CRC-32 continued from `crc`; both have inverted bits, as between two bytes. */
static inline uint32_t crc32_by_tables(uint32_t crc, const char *p, size_t size) {
    const unsigned char *at = (const unsigned char *)p;
    while (size >= 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        low = __builtin_bswap32(low);
        high = __builtin_bswap32(high);
#endif
        low ^= crc;
        crc = crc32_tables[7][low & 0xFF] ^ crc32_tables[6][(low >> 8) & 0xFF] ^ crc32_tables[5][(low >> 16) & 0xFF] ^
              crc32_tables[4][low >> 24] ^ crc32_tables[3][high & 0xFF] ^ crc32_tables[2][(high >> 8) & 0xFF] ^
              crc32_tables[1][(high >> 16) & 0xFF] ^ crc32_tables[0][high >> 24];
        at += 8;
        size -= 8;
    }
    while (size--) crc = crc32_tables[0][(crc ^ *at++) & 0xFF] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <smmintrin.h>
#include <wmmintrin.h>

/* Folding by carry-less multiplication, for sizes of at least 64 that are multiples of 16. The constants are powers of x
   modulo the polynomial, bit-reflected: see "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel, 2009). */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc32_by_folding(uint32_t crc, const char *p, size_t size) {
    const __m128i by64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i *at = (const __m128i *)p;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(at), _mm_cvtsi32_si128((int)crc));
    __m128i b = _mm_loadu_si128(at + 1), c = _mm_loadu_si128(at + 2), d = _mm_loadu_si128(at + 3);
    at += 4;
    size -= 64;
#define PYROMQ_FOLD(x, by, more)                                                                                       \
    x = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), more)
    while (size >= 64) {
        PYROMQ_FOLD(a, by64, _mm_loadu_si128(at));
        PYROMQ_FOLD(b, by64, _mm_loadu_si128(at + 1));
        PYROMQ_FOLD(c, by64, _mm_loadu_si128(at + 2));
        PYROMQ_FOLD(d, by64, _mm_loadu_si128(at + 3));
        at += 4;
        size -= 64;
    }
    PYROMQ_FOLD(a, by16, b);
    PYROMQ_FOLD(a, by16, c);
    PYROMQ_FOLD(a, by16, d);
    while (size >= 16) {
        PYROMQ_FOLD(a, by16, _mm_loadu_si128(at));
        at++;
        size -= 16;
    }
#undef PYROMQ_FOLD
    /* The remaining 16 bytes have the same checksum as all folded bytes. */
    char rest[16];
    _mm_storeu_si128((__m128i *)rest, a);
    return crc32_by_tables(0, rest, 16);
}
#endif

static inline uint32_t crc32_of(const char *p, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
#if defined(__x86_64__) && defined(__GNUC__)
    if (size >= 64 && crc32_has_clmul) {
        size_t folded = size & ~(size_t)15;
        crc = crc32_by_folding(crc, p, folded);
        p += folded;
        size -= folded;
    }
#endif
    return ~crc32_by_tables(crc, p, size);
}

/* CRC-16 (CCITT, from 0) as `binascii.crc_hqx` computes it, by eight tables; `crc16_setup` fills them once. */
static uint16_t crc16_tables[8][256];

static void crc16_setup(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint16_t c = (uint16_t)(n << 8);
        for (int k = 0; k < 8; k++) c = (uint16_t)(c & 0x8000 ? c << 1 ^ 0x1021 : c << 1);
        crc16_tables[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++) {
            uint16_t c = crc16_tables[k - 1][n];
            crc16_tables[k][n] = (uint16_t)(c << 8 ^ crc16_tables[0][c >> 8]);
        }
}

static inline uint16_t crc16_of(uint16_t crc, const char *p, size_t size) {
    const unsigned char *at = (const unsigned char *)p;
    for (; size >= 8; at += 8, size -= 8)
        crc = crc16_tables[7][at[0] ^ crc >> 8] ^ crc16_tables[6][at[1] ^ (crc & 0xFF)] ^ crc16_tables[5][at[2]] ^
              crc16_tables[4][at[3]] ^ crc16_tables[3][at[4]] ^ crc16_tables[2][at[5]] ^ crc16_tables[1][at[6]] ^
              crc16_tables[0][at[7]];
    while (size--) crc = (uint16_t)(crc << 8 ^ crc16_tables[0][crc >> 8 ^ *at++]);
    return crc;
}

#endif
