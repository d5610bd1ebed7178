/* The table of devices, shared by device.c, which fills it, and context.c. */
#ifndef TB_CUDA_DEVICE_TABLE_H
#define TB_CUDA_DEVICE_TABLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/device.h"

enum { TB__PEER_NOT_ASKED = 0, TB__PEER_YES = 1, TB__PEER_NO = 2 };

struct tb__gpu_entry {
    struct tb__gpu gpu;
    _Atomic(tb__context) primary; /* retained; NULL until the first use */
    _Atomic int looked_for;       /* whether somebody else's use of it was asked for */
    unsigned char *can_peer;      /* [count]: TB__PEER_ values; lock */
};

extern struct tb__gpu_table {
    pthread_mutex_t lock;
    struct tb__gpu_entry *entries; /* NULL until filled */
    int count;
} tb__gpus;

/* Open the driver, and fill the table. */
tb_status tb__gpus_need(void);

#endif
