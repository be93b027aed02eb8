// Block hashes against values that Python's hashlib gives for the layout that block_hash.h states:
//   root = sha256(b"\0vllm-none-hash" + struct.pack("<Q", len(salt)) + salt).digest()[:16]
//   next = sha256(b"\1" + before + struct.pack("<%di" % len(tokens), *tokens)).digest()[:16]
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/block_hash.h"

enum { MAX_TOKENS = 32 };

static void assert_hash(struct block_hash hash, const char *hex)
{
    char text[33];
    unsigned char bytes[16];
    memcpy(bytes, &hash, sizeof(bytes));
    for (int i = 0; i < 16; i++)
        snprintf(text + (ptrdiff_t)2 * i, 3, "%02x", bytes[i]);
    assert_string_equal(text, hex);
}

static void sha256_gives_the_values_of_the_stated_layout(void **state)
{
    (void)state;
    static const struct {
        struct str salt;
        int32_t block_size, num_tokens, tokens[MAX_TOKENS];
        const char *root, *last;
    } rows[] = {
        {STR(""),
         1,
         1,
         {0},
         "d823cccb03e00af69bea26e543d6bbce",
         "a25d639b82eb8968d1888c7fe27f5577"},
        {STR(""),
         4,
         8,
         {1, 2, 3, 4, 5, 6, 7, 8},
         "d823cccb03e00af69bea26e543d6bbce",
         "f3fc72313a6dfd32ff491faff7f0581d"},
        {STR("tenant-a"),
         4,
         8,
         {1, 2, 3, 4, 5, 6, 7, 8},
         "b92b91b5f1a679027b9e2b83a336535c",
         "a90b9bf453565c68d89b6b5b0839c672"},
        {STR(""),
         16,
         32,
         {100000, 100001, 100002, 100003, 100004, 100005, 100006, 100007, 100008, 100009, 100010,
          100011, 100012, 100013, 100014, 100015, 100016, 100017, 100018, 100019, 100020, 100021,
          100022, 100023, 100024, 100025, 100026, 100027, 100028, 100029, 100030, 100031},
         "d823cccb03e00af69bea26e543d6bbce",
         "a7cb22b63eb91b8f5ae8aad4e81bd620"},
        {STR("\x00"
             "x"),
         2,
         2,
         {2147483647, 0},
         "7bf1f3a430320e81ed3fcc3d8b626829",
         "47937214a1f7aebde8ad74287b3c9bf5"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct block_hasher hasher;
        block_hasher_init(&hasher, BLOCK_HASH_SHA256, rows[i].block_size);
        struct block_hash hash = block_hasher_root(&hasher, rows[i].salt);
        assert_hash(hash, rows[i].root);
        for (int32_t t = 0; t < rows[i].num_tokens; t += rows[i].block_size)
            hash = block_hasher_next(&hasher, hash, rows[i].tokens + t);
        assert_hash(hash, rows[i].last);
        block_hasher_deinit(&hasher);
    }
}

static bool is_same(struct block_hash a, struct block_hash b)
{
    return a.low == b.low && a.high == b.high;
}

// Whatever is different is hashed differently, with both algorithms.
static void salts_and_blocks_never_stand_for_each_other(void **state)
{
    (void)state;
    static const struct str salts[] = {{"", 0},    {"a", 1},     {"b", 1},  {"ab", 2},
                                       {"a\0", 2}, {"\0a", 2},   {"\0", 1}, {"vllm-none-hash", 14},
                                       {"\1", 1},  {"\0\0\0", 3}};
    for (enum block_hash_algo algo = BLOCK_HASH_SHA256; algo <= BLOCK_HASH_XXHASH; algo++) {
        struct block_hasher hasher;
        block_hasher_init(&hasher, algo, 2);
        struct block_hash seen[ARRAY_LEN(salts) * 2];
        size_t num_seen = 0;
        for (size_t i = 0; i < ARRAY_LEN(salts); i++) {
            seen[num_seen] = block_hasher_root(&hasher, salts[i]);
            seen[num_seen + 1] = block_hasher_next(&hasher, seen[num_seen], (int32_t[]){0, 0});
            num_seen += 2;
        }
        for (size_t i = 0; i < num_seen; i++) {
            for (size_t k = 0; k < i; k++)
                assert_false(is_same(seen[i], seen[k]));
        }
        // A salt that spells the input of a block is still a salt.
        unsigned char spelled[1 + 16 + 8] = {1};
        memcpy(spelled + 1, &seen[0], 16);
        struct str salt = {(const char *)spelled, sizeof(spelled)};
        assert_false(is_same(block_hasher_root(&hasher, salt), seen[1]));
        block_hasher_deinit(&hasher);
    }
}

static void xxhash_differs_from_process_to_process_and_not_within_one(void **state)
{
    (void)state;
    struct block_hasher a, b;
    block_hasher_init(&a, BLOCK_HASH_XXHASH, 2);
    block_hasher_init(&b, BLOCK_HASH_XXHASH, 2); // as another process would: a secret of its own
    assert_true(is_same(block_hasher_root(&a, STR("x")), block_hasher_root(&a, STR("x"))));
    assert_false(is_same(block_hasher_root(&a, STR("x")), block_hasher_root(&b, STR("x"))));
    block_hasher_deinit(&a);
    block_hasher_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_gives_the_values_of_the_stated_layout),
        cmocka_unit_test(salts_and_blocks_never_stand_for_each_other),
        cmocka_unit_test(xxhash_differs_from_process_to_process_and_not_within_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
