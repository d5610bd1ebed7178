/* Everything: see each header for the life of its noun. */
#ifndef TENSORBUS_TENSORBUS_H
#define TENSORBUS_TENSORBUS_H

#include <tensorbus/adopt.h>
#include <tensorbus/bus.h>
#include <tensorbus/cuda.h>
#include <tensorbus/dora_pool.h>
#include <tensorbus/embed.h>
#include <tensorbus/extension.h>
#include <tensorbus/handle.h>
#include <tensorbus/memory.h>
#include <tensorbus/metadata.h>
#include <tensorbus/node.h>
#include <tensorbus/pool.h>
#include <tensorbus/reader.h>
#include <tensorbus/status.h>
#include <tensorbus/tensor.h>
#include <tensorbus/tensor_pool.h>

#endif
