/* Building and parsing of dora's pool names. */
#include "segment/dora_name.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define ID_PREFIX "pool_"

static tb_status check_node(const char *node)
{
    TB__TRY(tb__name_check("node id", node));
    if (strcmp(node, "dora") == 0) {
        return TB__FAIL(TB_E_INVALID, "node id `dora` is reserved");
    }
    return TB_OK;
}

tb_status tb__dora_segment_name(const char *machine, const char *flow, const char *node,
                                uint64_t counter, char out[TB__DORA_NAME_SIZE])
{
    /* Three names of at most 64 characters, the prefix and the counter are at most 226. */
    _Static_assert(sizeof TB__DORA_PREFIX - 1 + 3 * (size_t)TB__NAME_SIZE + 20 < TB__DORA_NAME_SIZE,
                   "every name that is built fits");
    int has_machine = machine != NULL && machine[0] != '\0';
    if (has_machine) {
        TB__TRY(tb__name_check("machine id", machine));
    }
    TB__TRY(tb__name_check("flow id", flow));
    TB__TRY(check_node(node));
    snprintf(out, TB__DORA_NAME_SIZE, TB__DORA_PREFIX "%s%s%s_%s_%" PRIu64,
             has_machine ? machine : "", has_machine ? "_" : "", flow, node, counter);
    return TB_OK;
}

tb_status tb__dora_explicit_name_check(const char *name)
{
    size_t length = name != NULL ? strlen(name) : 0;
    const char *rule = NULL;
    if (length == 0) {
        rule = "is empty";
    } else if (strncmp(name, TB__DORA_PREFIX, sizeof TB__DORA_PREFIX - 1) != 0) {
        rule = "does not begin with `" TB__DORA_PREFIX "`";
    } else if (strchr(name, '/') != NULL) {
        rule = "has a `/`";
    } else if (strstr(name, "..") != NULL) {
        rule = "has a `..`";
    } else if (length > TB__DORA_EXPLICIT_NAME_MAX) {
        rule = "has more than 128 characters";
    }
    if (rule != NULL) {
        return TB__FAIL(TB_E_INVALID, "segment name `%.130s` %s", name != NULL ? name : "", rule);
    }
    return TB_OK;
}

tb_status tb__dora_pool_id(const char *node, uint64_t counter, char out[TB_POOL_ID_SIZE])
{
    _Static_assert(sizeof ID_PREFIX - 1 + TB__NAME_SIZE + 20 < TB_POOL_ID_SIZE, "every id fits");
    TB__TRY(check_node(node));
    snprintf(out, TB_POOL_ID_SIZE, ID_PREFIX "%s_%" PRIu64, node, counter);
    return TB_OK;
}

/* Canonical decimal: no sign, no leading zeros. Two ids of one pool would be two names. */
static int parse_counter(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (text[0] == '\0' || (text[0] == '0' && text[1] != '\0')) {
        return 0;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value)) {
            return 0;
        }
    }
    *out = value;
    return 1;
}

tb_status tb__dora_pool_id_parse(const char *id, char node[TB__NAME_SIZE], uint64_t *counter)
{
    const size_t prefix = sizeof ID_PREFIX - 1;
    const char *last = id != NULL ? strrchr(id, '_') : NULL;
    char name[TB__NAME_SIZE];
    uint64_t value;
    /* The underscore of the prefix itself is not the last one of an id. */
    if (last == NULL || strncmp(id, ID_PREFIX, prefix) != 0 || last < id + prefix ||
        last - id - (ptrdiff_t)prefix >= TB__NAME_SIZE || !parse_counter(last + 1, &value)) {
        return TB__FAIL(TB_E_INVALID,
                        "`%.100s` is no pool id: they are like `pool_<node>_<number>`",
                        id != NULL ? id : "(null)");
    }
    size_t length = (size_t)(last - id) - prefix;
    memcpy(name, id + prefix, length);
    name[length] = '\0';
    TB__TRY(check_node(name));
    tb__name_copy(node, name);
    *counter = value;
    return TB_OK;
}

tb_status tb__dora_candidates(const char *machine, const char *flow, const char *id,
                              char out[2][TB__DORA_NAME_SIZE], int *count)
{
    char node[TB__NAME_SIZE];
    uint64_t counter;
    int found = 0;
    TB__TRY(tb__dora_pool_id_parse(id, node, &counter));
    if (machine != NULL && machine[0] != '\0') {
        TB__TRY(tb__dora_segment_name(machine, flow, node, counter, out[found++]));
    }
    TB__TRY(tb__dora_segment_name(NULL, flow, node, counter, out[found++]));
    *count = found;
    return TB_OK;
}

void tb__dora_counter_init(struct tb__dora_counter *counter, uint64_t seed)
{
    atomic_init(&counter->next, seed);
}

uint64_t tb__dora_counter_take(struct tb__dora_counter *counter)
{
    /* Relaxed: only uniqueness matters. */
    return atomic_fetch_add_explicit(&counter->next, 1, memory_order_relaxed);
}

static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static struct tb__dora_counter process_counter;

static void seed_process(void)
{
    tb__dora_counter_init(&process_counter, tb__random64());
}

uint64_t tb__dora_counter_process(void)
{
    pthread_once(&process_once, seed_process);
    return tb__dora_counter_take(&process_counter);
}
