/* Local messages on a lifeline: a header, a body, at most TB__WIRE_MAX_FDS descriptors, one message
 * per packet of a SOCK_SEQPACKET socket. Bodies are fixed-layout little-endian structs, decoded by
 * length first: a body shorter or longer than its type says is refused. Unknown flags are refused.
 */
#ifndef TB_WIRE_WIRE_H
#define TB_WIRE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/name.h"

#define TB__WIRE_MAGIC 0x31534254u /* "TBS1" */
#define TB__WIRE_VERSION 1
#define TB__WIRE_MAX_BYTES 65536 /* header and body */
#define TB__WIRE_MAX_FDS 4

enum tb__wire_type {
    TB__MSG_HELLO = 1,   /* client: tb__hello_wire, its doorbell */
    TB__MSG_WELCOME = 2, /* server: tb__hello_wire, its doorbell */
    TB__MSG_ERROR = 3,   /* reply: tb__error_wire */
    TB__MSG_OK = 4,      /* reply: empty body */
    TB__MSG_GOODBYE = 5, /* the sender closes its bus in good order */
    TB__MSG_CANCEL = 6,  /* the caller of request N has given up */

    TB__MSG_POOL_OPEN = 16,   /* tb__pool_open_wire */
    TB__MSG_POOL = 17,        /* reply: tb__pool_wire, data segment, page, and what its flags say */
    TB__MSG_POOL_MAPPED = 18, /* tb__reader_wire: the page is mapped, seal it */
    TB__MSG_READER_CLOSE = 19,   /* tb__reader_wire */
    TB__MSG_POOL_FREE = 20,      /* tb__pool_open_wire */
    TB__MSG_READER_FD = 21,      /* tb__reader_wire, one end of a socket pair */
    TB__MSG_POOL_LIST = 22,      /* tb__pool_list_wire; reply POOL_NAMES */
    TB__MSG_POOL_NAMES = 23,     /* reply: tb__pool_list_wire, then names, each terminated */
    TB__MSG_POOL_OBSERVE = 24,   /* tb__pool_open_wire; reply POOL with the data segment alone */
    TB__MSG_READER_TROUBLE = 25, /* tb__trouble_wire: what hinders a reader */
    TB__MSG_POOL_READERS = 26,   /* tb__pool_open_wire; reply READER_NAMES */
    TB__MSG_READER_NAMES = 27,   /* reply: tb__reader_names_wire, then tb__reader_name_wire */

    TB__MSG_STREAM_FIRST = 32, /* 32 to 47: streams, see node */
    TB__MSG_STREAM_LAST = 47,

    TB__MSG_STOP = 48,         /* runner to node: empty */
    TB__MSG_NODE_GONE = 49,    /* runner to node: tb__name_wire, that node ended for good */
    TB__MSG_POOL_ADDED = 50,   /* node to runner: tb__name_wire, a pool was registered */
    TB__MSG_POOL_REMOVED = 51, /* node to runner: tb__name_wire, it was freed */
    TB__MSG_NODE_READY = 52,   /* node to runner: empty */
    TB__MSG_RUNNER_FIRST = 53, /* 53 and 54: tools to runner, see flow */

    TB__MSG_EXT_STORE = 55, /* 55 to 61: extension channel, see wire/extension.h */
    TB__MSG_EXT_LOAD = 56,  /* node to runner, as the two around it */
    TB__MSG_EXT_DROP = 57,
    TB__MSG_EXT_REQUEST = 58, /* node to the runner's half of an extension */
    TB__MSG_EXT_VALUE = 59,   /* reply to LOAD */
    TB__MSG_EXT_DROPPED = 60, /* runner to node: keys that were dropped */
    TB__MSG_EXT_TAKEN = 61,   /* node to runner, empty: DROPPED was taken, send the next */
    TB__MSG_LAST = 63,
};

struct tb__wire_header {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t body_bytes;
    uint32_t request; /* 0: no reply is wanted; a reply repeats it */
};
_Static_assert(sizeof(struct tb__wire_header) == 16, "wire header");

#define TB__WIRE_MAX_BODY (TB__WIRE_MAX_BYTES - sizeof(struct tb__wire_header))

struct tb__hello_wire {
    uint64_t endpoint_id;
    uint32_t flags;               /* 0 */
    uint32_t pid;                 /* for people; never trusted */
    char name[TB__NAME_SIZE + 7]; /* terminated, padded with 0 */
};
_Static_assert(sizeof(struct tb__hello_wire) == 88, "hello");

struct tb__error_wire {
    int32_t status;
    uint32_t reserved;
    char text[512];
};
_Static_assert(sizeof(struct tb__error_wire) == 520, "error");

struct tb__name_wire {
    char name[128]; /* terminated, padded with 0 */
};

#define TB__OPEN_BY_NAME 1u
#define TB__OPEN_BY_UID 2u
#define TB__OPEN_WAIT 4u /* hold the request until the pool exists */
#define TB__OPEN_EVERY 8u
#define TB__OPEN_ACK 16u
#define TB__OPEN_START_NEXT 32u
#define TB__OPEN_GATED 64u /* orders itself on a GPU: wants gates */
#define TB__OPEN_KNOWN_FLAGS 127u

struct tb__pool_open_wire {
    uint32_t flags;
    uint32_t max_leases; /* 0: the pool's default */
    uint8_t uid[16];
    char name[TB__NAME_SIZE + 7];
};
_Static_assert(sizeof(struct tb__pool_open_wire) == 96, "pool open");

#define TB__POOL_DRY 1u       /* readers' leases could hold all slots */
#define TB__POOL_EXPORTED 2u  /* the segment is an unsealed file for foreign readers */
#define TB__POOL_GATED 4u     /* behind the page comes the descriptor of the gates */
#define TB__POOL_DEVICE_FD 8u /* the last descriptor names the GPU's allocation */

struct tb__pool_wire {
    uint8_t uid[16];
    uint64_t reader_id; /* unique in the owner's process; 0 for an observer */
    uint64_t segment_bytes;
    uint32_t max_leases;
    uint32_t flags; /* TB__POOL_* */
    char name[TB__NAME_SIZE + 7];
};
_Static_assert(sizeof(struct tb__pool_wire) == 112, "pool");

struct tb__reader_wire {
    uint64_t reader_id;
};

struct tb__trouble_wire {
    uint64_t reader_id;
    int32_t status;    /* tb_status, negative */
    int32_t cuda_code; /* 0: it does not come from a driver */
    char text[256];    /* cut off if need be, padded with 0 */
};
_Static_assert(sizeof(struct tb__trouble_wire) == 272, "trouble");

/* A process's pools are listed newest first, as many as fit a message. */
struct tb__pool_list_wire {
    uint64_t before; /* request: list those older than this number, 0: all; reply: ask on with it,
                        0: these were the last */
};

/* Who reads a pool, TB__READERS_LISTED of them at most. */
struct tb__reader_names_wire {
    uint32_t count;  /* of its readers */
    uint32_t listed; /* of these, behind this */
};
struct tb__reader_name_wire {
    uint32_t pid; /* as the owner sees it */
    uint32_t reserved;
    char name[TB__NAME_SIZE + 7]; /* of the process; "": it has none */
};
_Static_assert(sizeof(struct tb__reader_name_wire) == 80, "reader name");
#define TB__READERS_LISTED 256u

/* A received message after its header has been checked. */
struct tb__msg {
    uint16_t type;
    uint32_t request;
    const uint8_t *body;
    uint32_t body_bytes;
    int fds[TB__WIRE_MAX_FDS]; /* a handler that keeps one sets it to -1 */
    uint32_t fd_count;
    uint32_t fds_lost; /* 1: descriptors came with it that this process had no room for */
};

/* Check the header of `bytes` received bytes. */
tb_status tb__wire_check(const void *packet, size_t bytes, struct tb__msg *out);

/* Copy the body into `out`, which has exactly `bytes` bytes and `fds` descriptors come with it. */
tb_status tb__wire_body(const struct tb__msg *msg, void *out, size_t bytes, uint32_t fds);

/* Whether a name field of `size` bytes is terminated and valid ("" too if `empty`). */
int tb__wire_name_ok(const char *field, size_t size, int empty);

#endif
