/* The door and the table of devices: what is there, by number and by UUID, whose context. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda/device.h"
#include "tests/cuda/kit.h"

static void devices_have_what_their_attributes_say(void)
{
    int count = 0;
    const struct tb__gpu *a = NULL, *b = NULL, *c = NULL;
    OK(tb__gpu_count(&count));
    CHECK_EQ(count, 3);
    OK(tb__gpu_get(0, &a));
    OK(tb__gpu_get(1, &b));
    OK(tb__gpu_get(2, &c));
    CHECK(a->vmm && a->posix_fd && a->granularity == 2 << 20 && !a->integrated && !a->mig);
    CHECK(a->stream_mem_ops_64 && a->managed && a->memory_pools);
    CHECK(a->host_register && a->read_only_host_register && a->host_pointer_is_device_pointer);
    CHECK_EQ(a->total_bytes, 256 << 20);
    CHECK(b->mig && !b->vmm && !b->posix_fd && b->granularity == 0);
    CHECK(c->integrated && !c->stream_mem_ops_64 && !c->read_only_host_register);
    CHECK(memcmp(a->uuid, b->uuid, 16) != 0 && memcmp(b->uuid, c->uuid, 16) != 0);
    const struct tb__gpu *found = NULL;
    OK(tb__gpu_by_uuid(b->uuid, &found));
    CHECK(found == b);
    OK(tb__gpu_of_device(TB_CUDA(2), &found));
    CHECK(found == c);
    FAILS(tb__gpu_get(3, &found), TB_E_NOT_FOUND, "there is no cuda:3: this process sees 3");
    FAILS(tb__gpu_get(-1, &found), TB_E_NOT_FOUND, "cuda:-1");
    FAILS(tb__gpu_of_device(TB_CPU, &found), TB_E_INVALID, "no GPU");
    uint8_t other[16] = {1};
    FAILS(tb__gpu_by_uuid(other, &found), TB_E_NOT_FOUND, "GPU-01000000-0000-0000");
    CHECK(found == c);
    struct fake_leaks leaks;
    kit_fake()->leaks(&leaks);
    CHECK_EQ(leaks.primaries, 0); /* looking makes no context */
}

/* ------------------------------------------------------------------ contexts */

static int retained(void)
{
    struct fake_leaks leaks;
    kit_fake()->leaks(&leaks);
    return leaks.primaries;
}

static void work_runs_in_the_primary_context_and_leaves_none_current(void)
{
    const struct tb__gpu *gpu = NULL;
    struct tb__gpu_scope scope, inner;
    tb__context current = NULL;
    OK(tb__gpu_get(1, &gpu));
    OK(tb__gpu_enter(gpu, &scope));
    CHECK(scope.pushed && scope.context != NULL);
    OK(tb__gpu_enter(gpu, &inner));
    CHECK(!inner.pushed && inner.context == scope.context);
    tb__gpu_leave(&inner);
    CHECK_EQ(tb__cuda()->ctx_get_current(&current), 0);
    CHECK(current == scope.context);
    tb__gpu_leave(&scope);
    CHECK_EQ(tb__cuda()->ctx_get_current(&current), 0);
    CHECK(current == NULL);
    OK(tb__gpu_enter(gpu, &scope));
    tb__gpu_leave(&scope);
    CHECK_EQ(retained(), 1); /* of one device, once */
}

typedef int create_fn(tb__context *out, unsigned flags, int device);
typedef int destroy_fn(tb__context context);

static void the_callers_context_is_used(void)
{
    const struct tb__gpu *gpu = NULL, *other = NULL;
    struct tb__gpu_scope scope;
    tb__context own = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    create_fn *create = NULL;
    destroy_fn *destroy = NULL;
    void *found = dlsym(library, "cuCtxCreate_v2");
    memcpy(&create, &found, sizeof found);
    found = dlsym(library, "cuCtxDestroy_v2");
    memcpy(&destroy, &found, sizeof found);
    OK(tb__gpu_get(1, &gpu));
    OK(tb__gpu_get(0, &other));
    CHECK_EQ(create(&own, 0, 1), 0);
    OK(tb__gpu_enter(gpu, &scope));
    CHECK(!scope.pushed && scope.context == own);
    tb__gpu_leave(&scope);
    CHECK_EQ(retained(), 0);
    OK(tb__gpu_enter(other, &scope)); /* of another device: its primary one */
    CHECK(scope.pushed && scope.context != own);
    tb__gpu_leave(&scope);
    CHECK_EQ(retained(), 1);
    /* G04: "cuda" without a number. */
    const struct tb__gpu *current = NULL;
    OK(tb__gpu_current(&current));
    CHECK(current == gpu);
    CHECK_EQ(destroy(own), 0);
    OK(tb__gpu_current(&current));
    CHECK(current == other);
}

static void a_reset_by_somebody_else_is_survived(void)
{
    const struct tb__gpu *gpu = NULL;
    struct tb__gpu_scope scope;
    OK(tb__gpu_get(0, &gpu));
    OK(tb__gpu_enter(gpu, &scope));
    tb__gpu_leave(&scope);
    kit_fake()->reset_device(0);
    OK(tb__gpu_enter(gpu, &scope));
    tb__gpu_leave(&scope);
    CHECK_EQ(retained(), 1);
}

/* ------------------------------------------------------------------ peers */

static void peers_are_asked_once_and_enabled_both_ways(void)
{
    const struct tb__gpu *gpus[3];
    int can = -1;
    for (int i = 0; i < 3; i++) {
        OK(tb__gpu_get(i, &gpus[i]));
        OK(tb__gpu_peer(gpus[i], gpus[i], &can));
        CHECK_EQ(can, 1);
    }
    OK(tb__gpu_peer(gpus[0], gpus[1], &can));
    CHECK_EQ(can, 1);
    OK(tb__gpu_peer(gpus[1], gpus[0], &can));
    CHECK_EQ(can, 1);
    CHECK_EQ(kit_fake()->calls("cuCtxEnablePeerAccess"), 2);
    CHECK_EQ(kit_fake()->calls("cuDeviceCanAccessPeer"), 2);
    OK(tb__gpu_peer(gpus[0], gpus[2], &can));
    CHECK_EQ(can, 0);
    CHECK_EQ(retained(), 2); /* no context for a device that nobody reaches */
}

static void no_room_for_one_more_peer(void)
{
    const struct tb__gpu *a = NULL, *b = NULL;
    int can = -1;
    OK(tb__gpu_get(0, &a));
    OK(tb__gpu_get(1, &b));
    kit_fake()->fail("cuCtxEnablePeerAccess:2:711");
    OK(tb__gpu_peer(a, b, &can));
    CHECK_EQ(can, 0);
}

static tb_status count_and_peer(void *argument)
{
    const struct tb__gpu *a = NULL, *b = NULL;
    uint64_t left = 0, all = 0;
    int can = 0;
    (void)argument;
    TB__TRY(tb__gpu_get(0, &a));
    TB__TRY(tb__gpu_get(1, &b));
    CHECK(a->name[0] == 'F' && b->name[0] == 'F' && a->total_bytes > 0 && b->total_bytes > 0);
    CHECK(a->uuid[0] == 'f' && memcmp(a->uuid, b->uuid, 16) != 0);
    CHECK(a->vmm && b->posix_fd && a->granularity > 0 && b->memory_pools && b->max_pitch > 0);
    TB__TRY(tb__gpu_memory(b, &left, &all));
    return tb__gpu_peer(a, b, &can);
}

/* The first look at the devices fails at each call in turn: in a process of its own each time. */
static void fail_first(void *argument)
{
    const unsigned *at = argument;
    char rule[64];
    OK(tb__cuda_need());
    snprintf(rule, sizeof rule, "*:%u:999", *at);
    kit_fake()->fail(rule);
    tb_status status = count_and_peer(NULL);
    int failed = kit_fake()->has_failed();
    kit_fake()->fail(NULL);
    if (failed && status != TB_OK) {
        CHECK_EQ(status, TB_E_SYSTEM);
        CHECK(strstr(tb_last_error_text(), "(999)") != NULL);
    }
    OK(count_and_peer(NULL));
    CLEAN();
    _exit(failed ? 0 : 99);
}

static void every_failure_of_the_first_look_is_told_and_forgotten(void)
{
    unsigned at = 1;
    int status = 0;
    while ((status = kit_child(fail_first, &at)) == 0) {
        at++;
    }
    CHECK_EQ(status, 99);
    CHECK(at > 40);
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        FAKE(devices_have_what_their_attributes_say,
             "devices=3;memory=256;mig=1;no_vmm=1;integrated=2;no_stream_ops=2;"
             "no_read_only_register=2"),
        FAKE(work_runs_in_the_primary_context_and_leaves_none_current, "devices=2"),
        FAKE(the_callers_context_is_used, "devices=2"),
        FAKE(a_reset_by_somebody_else_is_survived, NULL),
        FAKE(peers_are_asked_once_and_enabled_both_ways, "devices=3;peer=0-1"),
        FAKE(no_room_for_one_more_peer, "devices=2;peer=0-1"),
        FAKE(every_failure_of_the_first_look_is_told_and_forgotten, "devices=2;peer=0-1"),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}
