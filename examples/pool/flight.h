/* The flow without turn-taking: what its two nodes agree on. */
#ifndef POOL_FLIGHT_H
#define POOL_FLIGHT_H

#include "example.h"

#define FLIGHT_SLOTS 8
#define FLIGHT_HELD 3 /* frames that the receiver keeps while newer ones arrive */

#endif
