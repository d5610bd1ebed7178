/* The door to the CUDA driver: libcuda.so.1, opened when it is first needed, never by a program
 * that uses the CPU only. All calls of src/cuda go through the table that tb__cuda() gives, and all
 * that fail through tb__cuda_fail(). No context is made here. Any thread. */
#ifndef TB_CUDA_DRIVER_H
#define TB_CUDA_DRIVER_H

#include "base/error.h"
#include "cuda/api.h"

/* Open and initialise the driver, once. TB_E_UNSUPPORTED: there is no driver, it is too old, or it
 * shows no GPU; the text says which and what to do. TB_E_FORKED: this process is the child of a
 * fork() that came after CUDA was initialised. TB_E_SYSTEM: the driver does not start. */
tb_status tb__cuda_need(void);

/* The driver's calls. tb__cuda_need() has returned TB_OK before. */
const struct tb__cuda_api *tb__cuda(void);

/* Report a failed call: "CALL(ARGUMENTS): CUDA's name (code), CUDA's text: the way out". Returns
 * TB_E_NOMEM, TB_E_UNSUPPORTED, TB_E_FORKED or TB_E_SYSTEM; tb_error.cuda_code is the result. */
tb_status tb__cuda_fail(int result, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for calls that give back: nobody is told, so it is logged, unless the driver has ended
 * before us or the context and all that was in it are gone. Logs nothing for TB__CUDA_SUCCESS. */
void tb__cuda_note(int result, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether a result means that the context is broken: every later call in it fails too. */
int tb__cuda_is_sticky(int result);

/* Whether the door is open already, in this process: what was made before a fork() is not ours. */
int tb__cuda_is_open(void);

#endif
