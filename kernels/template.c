// A kernel: adds the words of an array in the node's memory. Parameters: key u32, count u32, address u64. Reply: u64.
//
// Build: remora kernel build template.c

typedef unsigned int u32;
typedef unsigned long long u64;

#define IMPORT(name) __attribute__((import_module("remora"), import_name(#name)))

IMPORT(read) int read(u32 key, u64 va, void *ptr, u32 len);
IMPORT(reply) int reply(const void *ptr, u32 len);

// Where the node puts the parameters.
struct {
    u32 key;
    u32 count;
    u64 va;
    char rest[4096 - 16];
} params;

int run(u32 len)
{
    u64 word, sum = 0;
    if (len != 16)
        return 3;
    for (u32 i = 0; i < params.count; i++) {
        if (read(params.key, params.va + 8 * (u64)i, &word, sizeof word))
            return 16;
        sum += word;
    }
    return reply(&sum, sizeof sum) ? 17 : 0;
}
