/* SHA-1 for signatures of requests: HMAC with a key's states made once, of one text, or of many at once.

   One text is hashed with the processor's own instructions where it has them, in plain C elsewhere. Those wait for each other;
   the texts of a burst are hashed side by side, a text in each lane of the vectors of AVX-512, or of AVX2 where the processor
   has neither. All give the same. FIPS 180-4, RFC 2104. */

#ifndef PYROMQ_SHA1_H
#define PYROMQ_SHA1_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define PYROMQ_SHA_NI 1
#endif

/* What may be used, as bits. */
enum { SHA1_PROCESSOR = 1, SHA1_AVX2 = 2, SHA1_AVX512 = 4 };
enum { SHA1_LANES = 16, SHA1_PADDING = 72 };

typedef struct { uint32_t h[5]; } sha1_state;
typedef struct { sha1_state inner, outer; } hmac_key;

/* A text to be signed. Behind it there must be room for 72 more bytes. */
typedef struct {
    const hmac_key *key;
    char *text;
    size_t size;
    char signature[28];
} hmac_job;

static inline void sha1_start(sha1_state *state) {
    static const uint32_t start[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};
    memcpy(state->h, start, sizeof start);
}

/* The rounds over 16 words, which change; `word` is a number, or a vector of them. */
#define PYROMQ_ROTATED(value, bits) ((value) << (bits) | (value) >> (32 - (bits)))
#define PYROMQ_NEXT_WORD(i) \
    w[i & 15] = PYROMQ_ROTATED(w[(i + 13) & 15] ^ w[(i + 8) & 15] ^ w[(i + 2) & 15] ^ w[i & 15], 1);
#define PYROMQ_TWENTY(from, mixed, constant, word) \
    _Pragma("GCC unroll 20") for (int i = from; i < from + 20; i++) { \
        if (i >= 16) PYROMQ_NEXT_WORD(i) \
        word next = PYROMQ_ROTATED(a, 5) + (mixed) + e + (constant) + w[i & 15]; \
        e = d; d = c; c = PYROMQ_ROTATED(b, 30); b = a; a = next; \
    }
#define PYROMQ_COMPRESSION(name, word) \
    __attribute__((always_inline)) static inline void name(word h[5], word w[16]) { \
        word a = h[0], b = h[1], c = h[2], d = h[3], e = h[4]; \
        PYROMQ_TWENTY(0, d ^ (b & (c ^ d)), 0x5A827999u, word) \
        PYROMQ_TWENTY(20, b ^ c ^ d, 0x6ED9EBA1u, word) \
        PYROMQ_TWENTY(40, (b & c) | (d & (b | c)), 0x8F1BBCDCu, word) \
        PYROMQ_TWENTY(60, b ^ c ^ d, 0xCA62C1D6u, word) \
        h[0] += a; h[1] += b; h[2] += c; h[3] += d; h[4] += e; \
    }

PYROMQ_COMPRESSION(sha1_compress, uint32_t)

static void sha1_blocks_plain(sha1_state *state, const unsigned char *data, size_t blocks) {
    uint32_t w[16];
    for (; blocks; blocks--, data += 64) {
        for (int i = 0; i < 16; i++) {
            memcpy(&w[i], data + 4 * i, 4);
            w[i] = __builtin_bswap32(w[i]);
        }
        sha1_compress(state->h, w);
    }
}

#if PYROMQ_SHA_NI
/* Four rounds: `e` is used, `f` kept for the next ones; the message's words of later rounds are made on the way. */
#define PYROMQ_ROUNDS(e, f, now, next, after, before, kind) \
    e = _mm_sha1nexte_epu32(e, now); f = abcd; next = _mm_sha1msg2_epu32(next, now); \
    abcd = _mm_sha1rnds4_epu32(abcd, e, kind); before = _mm_sha1msg1_epu32(before, now); after = _mm_xor_si128(after, now);

__attribute__((target("sha,sse4.1")))
static inline void sha1_blocks_ni(sha1_state *state, const unsigned char *data, size_t blocks) {
    const __m128i mask = _mm_set_epi64x(0x0001020304050607LL, 0x08090a0b0c0d0e0fLL);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state->h), 0x1B);
    __m128i e0 = _mm_set_epi32((int)state->h[4], 0, 0, 0), e1;
    for (; blocks; blocks--, data += 64) {
        const __m128i abcd_before = abcd, e0_before = e0;
        __m128i m0 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data), mask);
        __m128i m1 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16)), mask);
        __m128i m2 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 32)), mask);
        __m128i m3 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 48)), mask);
        e0 = _mm_add_epi32(e0, m0);
        e1 = abcd;
        abcd = _mm_sha1rnds4_epu32(abcd, e0, 0);
        e1 = _mm_sha1nexte_epu32(e1, m1);
        e0 = abcd;
        abcd = _mm_sha1rnds4_epu32(abcd, e1, 0);
        m0 = _mm_sha1msg1_epu32(m0, m1);
        e0 = _mm_sha1nexte_epu32(e0, m2);
        e1 = abcd;
        abcd = _mm_sha1rnds4_epu32(abcd, e0, 0);
        m1 = _mm_sha1msg1_epu32(m1, m2);
        m0 = _mm_xor_si128(m0, m2);
        PYROMQ_ROUNDS(e1, e0, m3, m0, m1, m2, 0)
        PYROMQ_ROUNDS(e0, e1, m0, m1, m2, m3, 0)
        PYROMQ_ROUNDS(e1, e0, m1, m2, m3, m0, 1)
        PYROMQ_ROUNDS(e0, e1, m2, m3, m0, m1, 1)
        PYROMQ_ROUNDS(e1, e0, m3, m0, m1, m2, 1)
        PYROMQ_ROUNDS(e0, e1, m0, m1, m2, m3, 1)
        PYROMQ_ROUNDS(e1, e0, m1, m2, m3, m0, 1)
        PYROMQ_ROUNDS(e0, e1, m2, m3, m0, m1, 2)
        PYROMQ_ROUNDS(e1, e0, m3, m0, m1, m2, 2)
        PYROMQ_ROUNDS(e0, e1, m0, m1, m2, m3, 2)
        PYROMQ_ROUNDS(e1, e0, m1, m2, m3, m0, 2)
        PYROMQ_ROUNDS(e0, e1, m2, m3, m0, m1, 2)
        PYROMQ_ROUNDS(e1, e0, m3, m0, m1, m2, 3)
        PYROMQ_ROUNDS(e0, e1, m0, m1, m2, m3, 3)
        PYROMQ_ROUNDS(e1, e0, m1, m2, m3, m0, 3)
        PYROMQ_ROUNDS(e0, e1, m2, m3, m0, m1, 3)
        PYROMQ_ROUNDS(e1, e0, m3, m0, m1, m2, 3)
        e0 = _mm_sha1nexte_epu32(e0, e0_before);
        abcd = _mm_add_epi32(abcd, abcd_before);
    }
    _mm_storeu_si128((__m128i *)state->h, _mm_shuffle_epi32(abcd, 0x1B));
    state->h[4] = (uint32_t)_mm_extract_epi32(e0, 3);
}
#endif

static void (*sha1_blocks)(sha1_state *, const unsigned char *, size_t) = sha1_blocks_plain;

/* Prepare a key of 64 bytes at most; of a longer one it is the digest that counts. */
static inline void hmac_prepare(hmac_key *key, const char *secret, size_t size) {
    unsigned char pad[64];
    sha1_start(&key->inner);
    sha1_start(&key->outer);
    memset(pad, 0x36, 64);
    for (size_t i = 0; i < size; i++) pad[i] ^= (unsigned char)secret[i];
    sha1_blocks(&key->inner, pad, 1);
    for (int i = 0; i < 64; i++) pad[i] ^= 0x36 ^ 0x5C;
    sha1_blocks(&key->outer, pad, 1);
    memset(pad, 0, sizeof pad);
}

static inline size_t hmac_blocks(size_t size) { return (size + 9 + 63) / 64; }

/* End a text as SHA-1 wants it: the block of the key is in front of it. */
static inline void hmac_pad(char *text, size_t size) {
    size_t blocks = hmac_blocks(size);
    uint64_t bits = __builtin_bswap64((64 + (uint64_t)size) * 8);
    memset(text + size, 0, SHA1_PADDING);  /* all the room there is: a fixed size takes no call */
    text[size] = (char)0x80;
    memcpy(text + blocks * 64 - 8, &bits, 8);
}

/* Write the 28 characters of Base64 of a digest. */
static inline void hmac_write(const uint32_t h[5], char *signature) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char block[24] = {0};
    for (int i = 0; i < 5; i++) {
        uint32_t word = __builtin_bswap32(h[i]);
        memcpy(block + 4 * i, &word, 4);
    }
    for (int i = 0; i < 7; i++) {
        uint32_t three = (uint32_t)block[3 * i] << 16 | (uint32_t)block[3 * i + 1] << 8 | block[3 * i + 2];
        signature[4 * i] = digits[three >> 18];
        signature[4 * i + 1] = digits[three >> 12 & 63];
        signature[4 * i + 2] = digits[three >> 6 & 63];
        signature[4 * i + 3] = digits[three & 63];
    }
    signature[27] = '=';
}

/* Write the 28 characters of Base64 of the HMAC of a text. Behind it there must be room for 72 more bytes. */
static inline void hmac_text(const hmac_key *key, char *text, size_t size, char *signature) {
    unsigned char block[64] = {0};
    sha1_state inner = key->inner, outer = key->outer;
    const uint64_t bits = __builtin_bswap64((64 + 20) * 8);
    hmac_pad(text, size);
    sha1_blocks(&inner, (const unsigned char *)text, hmac_blocks(size));
    for (int i = 0; i < 5; i++) {
        uint32_t word = __builtin_bswap32(inner.h[i]);
        memcpy(block + 4 * i, &word, 4);
    }
    block[20] = 0x80;
    memcpy(block + 56, &bits, 8);
    sha1_blocks(&outer, block, 1);
    hmac_write(outer.h, signature);
}

#if PYROMQ_SHA_NI
typedef uint32_t sha1_eight __attribute__((vector_size(32)));
typedef uint32_t sha1_lanes __attribute__((vector_size(4 * SHA1_LANES)));

PYROMQ_COMPRESSION(sha1_compress_lanes, sha1_lanes)

#ifdef __clang__
#define PYROMQ_MIXED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PYROMQ_MIXED(a, b, ...) __builtin_shuffle(a, b, (sha1_eight){__VA_ARGS__})
#endif

/* Read eight words of each of eight texts; the first vector gets all first words, and so on. */
__attribute__((always_inline)) static inline void sha1_read_eight(sha1_eight w[8], const char *const at[8]) {
    sha1_eight r[8], t[8];
    for (int i = 0; i < 8; i++) {
        memcpy(&r[i], at[i], sizeof r[i]);
        r[i] = (PYROMQ_ROTATED(r[i], 8) & 0x00FF00FFu) | (PYROMQ_ROTATED(r[i], 24) & 0xFF00FF00u);
    }
    for (int i = 0; i < 8; i += 2) {
        t[i] = PYROMQ_MIXED(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = PYROMQ_MIXED(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = PYROMQ_MIXED(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 1] = PYROMQ_MIXED(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        r[i + 2] = PYROMQ_MIXED(t[i + 1], t[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 3] = PYROMQ_MIXED(t[i + 1], t[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (int i = 0; i < 4; i++) {
        w[i] = PYROMQ_MIXED(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        w[i + 4] = PYROMQ_MIXED(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

__attribute__((always_inline)) static inline void sha1_read_lanes(sha1_lanes w[8], const char *const at[SHA1_LANES]) {
    sha1_eight low[8], high[8];
    sha1_read_eight(low, at);
    sha1_read_eight(high, at + 8);
    for (int i = 0; i < 8; i++) {
        memcpy(&w[i], &low[i], sizeof low[i]);
        memcpy((char *)&w[i] + sizeof low[i], &high[i], sizeof high[i]);
    }
}

/* Sign as many texts as there are lanes at most; `rows` is the number of blocks of the longest one. */
__attribute__((always_inline)) static inline void hmac_lanes(hmac_job *jobs, int count, size_t rows) {
    sha1_lanes inner[5], outer[5], w[16], before[5], blocks, live;
    const char *at[SHA1_LANES];
    for (int lane = 0; lane < SHA1_LANES; lane++) {
        const hmac_job *job = &jobs[lane < count ? lane : 0];
        at[lane] = job->text;
        blocks[lane] = (uint32_t)hmac_blocks(job->size);
        for (int i = 0; i < 5; i++) {
            inner[i][lane] = job->key->inner.h[i];
            outer[i][lane] = job->key->outer.h[i];
        }
    }
    for (uint32_t row = 0; row < rows; row++) {
        memcpy(before, inner, sizeof before);
        sha1_read_lanes(w, at);
        for (int lane = 0; lane < SHA1_LANES; lane++) at[lane] += 32;
        sha1_read_lanes(w + 8, at);
        for (int lane = 0; lane < SHA1_LANES; lane++) at[lane] += row + 1 < blocks[lane] ? 32 : -32;  /* or once more */
        sha1_compress_lanes(inner, w);
        live = (sha1_lanes)(row < blocks);
        for (int i = 0; i < 5; i++) inner[i] = (inner[i] & live) | (before[i] & ~live);
    }
    memset(w, 0, sizeof w);
    for (int i = 0; i < 5; i++) w[i] = inner[i];
    w[5] += 0x80000000u;
    w[15] += (64 + 20) * 8;
    sha1_compress_lanes(outer, w);
    for (int lane = 0; lane < count; lane++) {
        uint32_t h[5];
        for (int i = 0; i < 5; i++) h[i] = outer[i][lane];
        hmac_write(h, jobs[lane].signature);
    }
}

#ifdef __clang__
#define PYROMQ_UNROLLED
#else
#define PYROMQ_UNROLLED , optimize("O3")  /* a quarter less time than with what the other units are built with */
#endif

__attribute__((target("avx512f,avx512vl") PYROMQ_UNROLLED)) static void hmac_lanes_avx512(hmac_job *jobs, int count, size_t rows) {
    hmac_lanes(jobs, count, rows);
}

__attribute__((target("avx2") PYROMQ_UNROLLED)) static void hmac_lanes_avx2(hmac_job *jobs, int count, size_t rows) {
    hmac_lanes(jobs, count, rows);
}
#endif

static void (*hmac_together)(hmac_job *, int, size_t) = NULL;

/* Sign texts, `SHA1_LANES` at most: side by side, unless they are few (a third of the lanes is worth it), or one of them is so
   long that most lanes would wait. */
static inline void hmac_texts(hmac_job *jobs, int count) {
    size_t rows = 0, sum = 0;
    for (int i = 0; i < count; i++) {
        size_t blocks = hmac_blocks(jobs[i].size);
        rows = blocks > rows ? blocks : rows;
        sum += blocks;
    }
    if (hmac_together != NULL && rows && 3 * sum >= SHA1_LANES * rows) {
        for (int i = 0; i < count; i++) hmac_pad(jobs[i].text, jobs[i].size);
        hmac_together(jobs, count, rows);
        return;
    }
    for (int i = 0; i < count; i++) hmac_text(jobs[i].key, jobs[i].text, jobs[i].size, jobs[i].signature);
}

/* Choose the forms, of those that are wanted; return which are used. AVX2 is for processors without instructions for SHA-1:
   beside those it gains little. */
static inline int sha1_setup(int wanted) {
    int used = 0;
    sha1_blocks = sha1_blocks_plain;
    hmac_together = NULL;
#if PYROMQ_SHA_NI
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (wanted & SHA1_PROCESSOR && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && (c & bit_SSSE3)
        && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29)) {
        sha1_blocks = sha1_blocks_ni;
        used |= SHA1_PROCESSOR;
    }
    if (wanted & SHA1_AVX512 && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512f")) {
        hmac_together = hmac_lanes_avx512;
        used |= SHA1_AVX512;
    } else if (wanted & SHA1_AVX2 && !(used & SHA1_PROCESSOR) && __builtin_cpu_supports("avx2")) {
        hmac_together = hmac_lanes_avx2;
        used |= SHA1_AVX2;
    }
#endif
    return used;
}

/* Whether two signatures are the same, in a time that does not tell where they differ. */
static inline int is_same_signature(const char *a, const char *b) {
    static const int places[4] = {0, 8, 16, 20};  /* of eight characters each */
    uint64_t differences = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t p, q;
        memcpy(&p, a + places[i], 8);
        memcpy(&q, b + places[i], 8);
        differences |= p ^ q;
    }
    return differences == 0;
}

#endif
