// A counter with a bound: takes n from a counter in memory, unless less than the bound would be left.
//
// Parameters: key u32, 4 zeros, address i64 of the counter (a multiple of 8), n i64 (not negative), bound i64.
// Reply: what is left, i64. Status 16: it would be less than the bound, and nothing was taken.
//
// Build: remora kernel build kernels/bounded.c

typedef unsigned int u32;
typedef long long i64;

#define IMPORT(name) __attribute__((import_module("remora"), import_name(#name)))

IMPORT(read) int read(u32 key, i64 va, void *ptr, u32 len);
IMPORT(compare_swap) int compare_swap(u32 key, i64 va, i64 expect, i64 new_value, i64 *was);
IMPORT(reply) int reply(const void *ptr, u32 len);

// Where the node puts the parameters.
struct {
    u32 key;
    u32 zero;
    i64 va;
    i64 n;
    i64 bound;
    char rest[4096 - 32];
} params;

enum { OK = 0, BAD_PARAMS = 3, AT_BOUND = 16, UNREACHABLE = 17 };

int run(u32 len)
{
    i64 value, was, left;
    if (len != 32 || params.n < 0)
        return BAD_PARAMS;
    if (read(params.key, params.va, &value, sizeof value))
        return UNREACHABLE;
    for (;;) {
        if (__builtin_sub_overflow(value, params.n, &left) || left < params.bound)
            return AT_BOUND;
        if (compare_swap(params.key, params.va, value, left, &was))
            return UNREACHABLE;
        if (was == value)
            break;
        value = was; // another call was faster: try with what it left
    }
    return reply(&left, sizeof left) ? UNREACHABLE : OK;
}
