/* A promised frame: its handle is given out before it is written, and whoever has the handle waits until
 * it is published, given up (-DGIVE_UP: either), or its owner dead (-DDEATH: at any step).
 *
 * The owner's stores leave its store buffer in their order (they are release stores), when they like; a
 * full fence waits for all of them. The reader's arming may stay in its buffer likewise. Sending the
 * handle goes through the kernel, which is a full fence. Nobody sleeps with a time limit here. Each rule
 * stands in an #ifndef NO_x: run.sh compiles it out and expects an error. */
mtype = { PAYLOAD, GEN, FAILED, PROMISED };

chan buffer = [4] of { mtype, bit }; /* the owner's store buffer */
bit payload;         /* the bytes are written */
bit gen;             /* the slot's word names the frame; 0: being written */
bit failed;          /* the record says that it never will */
bit promised;        /* the record names the frame as promised */
bit told;            /* the handle has arrived */
bit armed;           /* in the reader's page */
bit late_armed;      /* the reader's store of it is in its buffer */
bit counted;         /* the reader's bell was counted up since it was read */
bit asleep;
bit dying;           /* the owner executes no more */
bit dead;            /* its life word is marked: its stores have drained */
bit given_up;        /* what was really done, for the assertions */

active proctype Memory()
{
    mtype what;
    bit value;
end:
    do
    :: atomic {
            buffer?what, value ->
            if
            :: what == PAYLOAD -> payload = value
            :: what == GEN -> gen = value
            :: what == FAILED -> failed = value
            :: what == PROMISED -> promised = value
            fi
        }
    :: d_step { late_armed -> late_armed = 0; armed = 1 }
    od
}

#ifdef DEATH
active proctype Death()
{
    dying = 1;
    empty(buffer);
    dead = 1;
#ifndef NO_DEATH_WATCH
    asleep = 0 /* the kernel wakes who watches the life word */
#endif
}
#endif

inline wake()
{
#ifndef NO_FENCE
    empty(buffer);
#endif
    if
    :: d_step { armed -> armed = 0; counted = 1; asleep = 0 }
    :: !armed
    fi
}

active proctype Owner()
{
    {
#ifdef NO_PROMISED_FIRST
        told = 1;
#endif
        buffer!PROMISED, 1;
        empty(buffer);
        told = 1;
        if
        :: true ->
#ifdef NO_PAYLOAD_FIRST
            buffer!GEN, 1;
            buffer!PAYLOAD, 1;
            buffer!PROMISED, 0;
#else
            buffer!PAYLOAD, 1;
#ifdef NO_GEN_FIRST
            buffer!PROMISED, 0;
            buffer!GEN, 1;
#else
            buffer!GEN, 1;
            buffer!PROMISED, 0;
#endif
#endif
            wake()
#ifdef GIVE_UP
        :: true ->
            given_up = 1;
            buffer!FAILED, 1;
#ifndef NO_PROMISE_BROKEN
            buffer!PROMISED, 0;
#endif
#ifndef NO_WAKE_BROKEN
            wake()
#endif
#endif
        fi
    } unless { dying }
}

active proctype Reader()
{
    bit ended, true_data, true_got;
end_untold: /* the owner may die before it has told anybody */
    told;
again:
    ended = dead;
    if
    :: !promised -> goto decided
    :: promised
    fi;
    if
#ifndef NO_GEN_LOOK
    :: ended && gen -> goto decided /* it died between the two stores */
    :: ended && !gen ->
#else
    :: ended ->
#endif
        true_got = !gen; /* what a dead owner has published is read */
        assert(true_got);
        goto out
    :: else
    fi;
    counted = 0;
    late_armed = 1;
#ifndef NO_ARM_FENCE
    !late_armed;
#endif
#ifndef NO_LOOK_AGAIN
    if
    :: !promised || dead -> goto again
    :: else
    fi;
#endif
    /* The kernel compares and queues in one step. */
    d_step {
        if
#ifndef NO_DEATH_WATCH
        :: !counted && !dead -> asleep = 1
#else
        :: !counted -> asleep = 1
#endif
        :: else
        fi
    }
    !asleep;
    goto again;
decided:
    if
    :: gen ->
        true_data = payload;
        assert(true_data)
    :: else ->
        true_got = given_up && failed; /* stale: only what was given up is */
        assert(true_got)
    fi;
out:
    skip
}
