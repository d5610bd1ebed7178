/* Sources that a stream still needs. */
#include "kept.h"

#include "cuda_door.h"

struct py_kept {
    struct py_kept *next;
    struct py_source source;
    struct py_cuda_mark *mark;
};

static void let_go(struct py_kept *kept)
{
    py_cuda_unmark(kept->mark);
    py_source_close(&kept->source);
    PyMem_Free(kept);
}

void py_kept_add(struct py_kept **list, struct py_source *source, tb_cuda_stream stream,
                 tb_device device)
{
    struct py_cuda_mark *mark = py_cuda_mark(stream, device);
    struct py_kept *kept = mark != NULL ? PyMem_Malloc(sizeof *kept) : NULL;
    if (kept == NULL) {
        /* A broken context does nothing with the source any more; without memory it is waited
         * for. */
        if (mark != NULL) {
            py_cuda_await(mark);
            py_cuda_unmark(mark);
        }
        return;
    }
    *kept = (struct py_kept){.next = *list, .source = *source, .mark = mark};
    *list = kept;
    source->view.obj = NULL;
    source->keep = NULL;
}

void py_kept_sweep(struct py_kept **list)
{
    struct py_kept **place = list;
    struct py_kept *passed = NULL;
    while (*place != NULL) {
        struct py_kept *kept = *place;
        if (py_cuda_passed(kept->mark)) {
            *place = kept->next;
            kept->next = passed;
            passed = kept;
        } else {
            place = &kept->next;
        }
    }
    /* Letting go may run anything, this function too. */
    while (passed != NULL) {
        struct py_kept *kept = passed;
        passed = kept->next;
        let_go(kept);
    }
}

void py_kept_end(struct py_kept **list)
{
    while (*list != NULL) {
        struct py_kept *kept = *list;
        *list = kept->next;
        py_cuda_await(kept->mark);
        let_go(kept);
    }
}
