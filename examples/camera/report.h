/* What a node found out, for the script that started the flow: lines `key value` in the file
 * $CAMERA_REPORT/<node>.txt. Without CAMERA_REPORT nothing is written. */
#ifndef EXAMPLES_CAMERA_REPORT_H
#define EXAMPLES_CAMERA_REPORT_H

#include <stdio.h>

/* Open the report of a node. Returns NULL when none is wanted, or with a message when it cannot be
 * written. The caller closes it with fclose(). */
FILE *report_open(const char *node);

#endif
