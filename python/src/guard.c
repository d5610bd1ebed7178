/* The SIGSEGV handler. It calls nothing but write(2), getpid(2) and sigaction(2), and reads a table
 * whose entries are written before they are made visible. */
#include "guard.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define RANGES 1024
/* Looking is a system call. */
#define LOOK_EVERY 64

/* One exported range; begin 0: free. */
struct range {
    uintptr_t begin;
    uintptr_t end;
    enum py_guard_kind kind;
    char pool[136]; /* "owner/pool" */
};

static struct range ranges[RANGES];
static int free_numbers[RANGES];
static int free_count = -1; /* -1: not set up */
static unsigned looks;

static struct sigaction previous;
static int passing_on; /* the previous handler was called once */
static int spoken;     /* one line per process */

/* ---- the handler ---- */

static void say(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static const struct range *find(uintptr_t address)
{
    for (int i = 0; i < RANGES; i++) {
        /* Pairs with the release store in py_guard_add(). */
        uintptr_t begin = __atomic_load_n(&ranges[i].begin, __ATOMIC_ACQUIRE);
        if (begin != 0 && address >= begin && address < ranges[i].end) {
            return &ranges[i];
        }
    }
    return NULL;
}

static const char *const first_words[] = {
    [PY_GUARD_FRAME] = "tensorbus: this process wrote into a frame of pool `",
    [PY_GUARD_VALUE] = "tensorbus: this process wrote into the value of input `",
    [PY_GUARD_PUBLISHED] = "tensorbus: this process wrote into a frame of pool `",
};

static const char *const last_words[] = {
    [PY_GUARD_FRAME] = "`, which is read-only for all its readers: write into a copy "
                       "(frame.copy(), array.copy(), tensor.clone())\n",
    [PY_GUARD_VALUE] = "`, which is read-only for all its receivers: write into a copy "
                       "(value.copy(), array.copy(), tensor.clone())\n",
    [PY_GUARD_PUBLISHED] =
        "` after it was published: write only inside the `with pool.loan()` block, "
        "and into what the block gave you\n",
};

static void explain(const struct range *range)
{
    /* One buffer and one write, so that lines of several processes do not mix. */
    char line[512] = "";
    strcat(line, first_words[range->kind]);
    strncat(line, range->pool, sizeof line - strlen(line) - 1);
    strcat(line, last_words[range->kind]);
    say(line);
}

static void die_by_default(int number)
{
    struct sigaction by_default = {.sa_handler = SIG_DFL};
    sigaction(number, &by_default, NULL);
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    /* A handler that was called before and raises the signal again (faulthandler does) comes back
     * here: it has had its turn. */
    int again = passing_on && info->si_code <= 0 && info->si_pid == getpid();
    int has_handler = (previous.sa_flags & SA_SIGINFO) != 0 ||
                      (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN);
    if (!has_handler || again) {
        die_by_default(number);
        if (info->si_code <= 0) {
            raise(number); /* it was sent; a fault comes again by itself */
        }
        return;
    }
    passing_on = 1;
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else {
        previous.sa_handler(number);
    }
}

/* The address at which this thread has last faulted, as the kernel keeps it beside every signal of
 * the thread; 0: unknown. */
static uintptr_t last_fault(const ucontext_t *context)
{
#if defined __x86_64__
    enum { PAGE_FAULT = 14 };
    return context->uc_mcontext.gregs[REG_TRAPNO] == PAGE_FAULT
               ? (uintptr_t)context->uc_mcontext.gregs[REG_CR2]
               : 0;
#elif defined __aarch64__
    return (uintptr_t)context->uc_mcontext.fault_address;
#else
    (void)context;
    return 0;
#endif
}

/* Where the fault was that has led here; 0: nowhere. A handler that was installed after ours has
 * come first, and has raised the signal again when it was done (faulthandler does): that signal
 * tells no address. */
static uintptr_t address_of(const siginfo_t *info, const ucontext_t *context)
{
    if (info->si_code == SEGV_ACCERR) {
        return (uintptr_t)info->si_addr;
    }
    return info->si_code <= 0 && info->si_pid == getpid() ? last_fault(context) : 0;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    int kept = errno;
    uintptr_t address = spoken ? 0 : address_of(info, context);
    const struct range *range = address != 0 ? find(address) : NULL;
    if (range != NULL) {
        spoken = 1;
        explain(range);
    }
    pass_on(number, info, context);
    errno = kept;
}

/* ---- the table ---- */

static void install(void)
{
    struct sigaction now;
    if (sigaction(SIGSEGV, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
        now.sa_sigaction == on_fault) {
        return;
    }
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    previous = now;
    sigaction(SIGSEGV, &ours, NULL);
}

void py_guard_look(void)
{
    if (looks++ % LOOK_EVERY == 0) {
        install();
    }
}

int py_guard_add(enum py_guard_kind kind, const void *data, size_t bytes, const char *owner,
                 const char *pool)
{
    if (free_count < 0) {
        free_count = RANGES;
        for (int i = 0; i < RANGES; i++) {
            free_numbers[i] = RANGES - 1 - i;
        }
    }
    if (free_count == 0 || bytes == 0) {
        return -1;
    }
    int number = free_numbers[--free_count];
    struct range *range = &ranges[number];
    range->end = (uintptr_t)data + bytes;
    range->kind = kind;
    snprintf(range->pool, sizeof range->pool, "%s%s%s", owner, owner[0] != '\0' ? "/" : "", pool);
    /* Pairs with the acquire load in find(). */
    __atomic_store_n(&range->begin, (uintptr_t)data, __ATOMIC_RELEASE);
    return number;
}

void py_guard_remove(int number)
{
    if (number >= 0) {
        __atomic_store_n(&ranges[number].begin, 0, __ATOMIC_RELEASE);
        free_numbers[free_count++] = number;
    }
}
