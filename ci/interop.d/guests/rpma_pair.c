/* librpma: writes, flushes, reads and 8-byte atomic writes into memory of a file. Either end checks what it has.
 *
 *   rpma_pair server ADDRESS PORT FILE     FILE: a path on a file system in memory, which stands in for one with DAX, or "memfd"
 *   rpma_pair client ADDRESS PORT */

#define _GNU_SOURCE
#include <librpma.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (1 << 20)
#define STEP 65536

#define MUST(call)                                                           \
    do {                                                                     \
        int code_ = (call);                                                  \
        if (code_) {                                                         \
            fprintf(stderr, "%s: %s\n", #call, rpma_err_2str(code_));        \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

/* What the server tells the client when it accepts. */
struct offer {
    uint8_t size, config_size;
    char region[64], config[16];
};

static void expect(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static unsigned char byte(size_t at)
{
    return (unsigned char)(at * 131 + (at >> 8) + 7);
}

/* Waits for one completion. */
static void done(struct rpma_conn *conn)
{
    struct rpma_cq *cq;
    struct ibv_wc wc;

    MUST(rpma_conn_get_cq(conn, &cq));
    MUST(rpma_cq_wait(cq));
    MUST(rpma_cq_get_wc(cq, 1, &wc, NULL));
    expect(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

static struct rpma_peer *peer_at(const char *address, enum rpma_util_ibv_context_type type)
{
    struct ibv_context *context;
    struct rpma_peer *peer;

    MUST(rpma_utils_get_ibv_context(address, type, &context));
    MUST(rpma_peer_new(context, &peer));
    return peer;
}

static void event(struct rpma_conn *conn, enum rpma_conn_event wanted)
{
    enum rpma_conn_event got;

    MUST(rpma_conn_next_event(conn, &got));
    expect(got == wanted, rpma_utils_conn_event_2str(got));
}

static void server(const char *address, const char *port, const char *file)
{
    struct rpma_peer *peer = peer_at(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
    struct rpma_conn_private_data data;
    struct rpma_conn_req *request;
    struct offer offer = { 0 };
    struct rpma_peer_cfg *config;
    struct rpma_mr_local *region;
    struct rpma_conn *conn;
    struct rpma_ep *endpoint;
    unsigned char *memory;
    size_t size, at;
    int fd;

    fd = strcmp(file, "memfd") ? open(file, O_RDWR | O_CREAT | O_TRUNC, 0600) : memfd_create("rpma", 0);
    expect(fd >= 0 && ftruncate(fd, SIZE) == 0, "the file");
    memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    expect(memory != MAP_FAILED, "mmap");
    MUST(rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT |
                     RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &region));
    MUST(rpma_mr_get_descriptor_size(region, &size));
    expect(size <= sizeof offer.region, "a descriptor's size");
    offer.size = size;
    MUST(rpma_mr_get_descriptor(region, offer.region));
    MUST(rpma_peer_cfg_new(&config));
    MUST(rpma_peer_cfg_set_direct_write_to_pmem(config, true));
    MUST(rpma_peer_cfg_get_descriptor_size(config, &size));
    offer.config_size = size;
    MUST(rpma_peer_cfg_get_descriptor(config, offer.config));
    MUST(rpma_ep_listen(peer, address, port, &endpoint));
    puts("listening");
    fflush(stdout);
    MUST(rpma_ep_next_conn_req(endpoint, NULL, &request));
    data.ptr = &offer;
    data.len = sizeof offer;
    MUST(rpma_conn_req_connect(&request, &data, &conn));
    event(conn, RPMA_CONN_ESTABLISHED);
    event(conn, RPMA_CONN_CLOSED);
    /* The file has it, not the mapping alone. */
    for (at = 8; at < SIZE; at++) {
        unsigned char found;
        expect(pread(fd, &found, 1, at) == 1 && found == byte(at), "the file has other bytes");
    }
    expect(!memcmp(memory, "atomic!", 8), "the atomic write");
    MUST(rpma_conn_disconnect(conn));
    MUST(rpma_conn_delete(&conn));
    MUST(rpma_ep_shutdown(&endpoint));
    MUST(rpma_mr_dereg(&region));
    MUST(rpma_peer_delete(&peer));
    puts("checked");
}

static void client(const char *address, const char *port)
{
    struct rpma_peer *peer = peer_at(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
    unsigned char *out = malloc(SIZE), *in = calloc(1, SIZE);
    struct rpma_mr_local *source, *target;
    struct rpma_conn_private_data data;
    struct rpma_conn_req *request;
    struct rpma_mr_remote *remote;
    struct rpma_peer_cfg *config;
    struct rpma_conn *conn;
    struct offer offer;
    size_t at;

    for (at = 0; at < SIZE; at++)
        out[at] = byte(at);
    MUST(rpma_mr_reg(peer, out, SIZE, RPMA_MR_USAGE_WRITE_SRC, &source));
    MUST(rpma_mr_reg(peer, in, SIZE, RPMA_MR_USAGE_READ_DST, &target));
    MUST(rpma_conn_req_new(peer, address, port, NULL, &request));
    MUST(rpma_conn_req_connect(&request, NULL, &conn));
    event(conn, RPMA_CONN_ESTABLISHED);
    MUST(rpma_conn_get_private_data(conn, &data));
    expect(data.len >= sizeof offer, "the offer");
    memcpy(&offer, data.ptr, sizeof offer);
    MUST(rpma_mr_remote_from_descriptor(offer.region, offer.size, &remote));
    MUST(rpma_peer_cfg_from_descriptor(offer.config, offer.config_size, &config));
    MUST(rpma_conn_apply_remote_peer_cfg(conn, config));
    for (at = 0; at < SIZE; at += STEP) {
        enum rpma_flush_type how = at / STEP % 2 ? RPMA_FLUSH_TYPE_PERSISTENT : RPMA_FLUSH_TYPE_VISIBILITY;
        MUST(rpma_write(conn, remote, at, source, at, STEP, RPMA_F_COMPLETION_ON_ERROR, NULL));
        MUST(rpma_flush(conn, remote, at, STEP, how, RPMA_F_COMPLETION_ALWAYS, NULL));
        done(conn);
    }
    MUST(rpma_atomic_write(conn, remote, 0, "atomic!", RPMA_F_COMPLETION_ALWAYS, NULL));
    done(conn);
    for (at = 0; at < SIZE; at += STEP) {
        MUST(rpma_read(conn, target, at, remote, at, STEP, RPMA_F_COMPLETION_ALWAYS, NULL));
        done(conn);
    }
    expect(!memcmp(in, "atomic!", 8) && !memcmp(in + 8, out + 8, SIZE - 8), "what was read back is other");
    MUST(rpma_conn_disconnect(conn));
    event(conn, RPMA_CONN_CLOSED);
    MUST(rpma_conn_delete(&conn));
    puts("checked");
}

int main(int count, char **words)
{
    rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_WARNING);
    if (count > 4 && !strcmp(words[1], "server"))
        server(words[2], words[3], words[4]);
    else if (count > 3)
        client(words[2], words[3]);
    return 0;
}
