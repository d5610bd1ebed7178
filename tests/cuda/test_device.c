/* The door and the table of devices: what is there, by number and by UUID, whose context. */
#include <dlfcn.h>
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
    CHECK(a->stream_mem_ops_64 && a->ipc_events && a->managed && a->memory_pools);
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

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        FAKE(devices_have_what_their_attributes_say,
             "devices=3;memory=256;mig=1;no_vmm=1;integrated=2;no_stream_ops=2;"
             "no_read_only_register=2"),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}
