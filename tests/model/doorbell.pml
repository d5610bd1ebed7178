/* Sleeping and waking: no wake-up may be missed.
 *
 * Default: two threads of a reader sleep until the owner publishes; -DDEATH: the owner may die at any
 * step; -DEARLY: the owner may ring before it publishes, too. -DWAIT_SLOT: two threads of an owner sleep
 * until a slot is free; what frees it is a reader's release, its failed attempt to lease, its cursor, its
 * joining, with -DDEATH its death, with -DSTREAM a stream that clears an entry and cannot ring.
 *
 * Nobody sleeps with a time limit here (except where a stream releases): whoever misses a wake-up
 * sleeps for ever, and spin reports that as an invalid end state. A store that no full fence follows
 * stays in a store buffer for as long as it likes while later loads go on, as on x86 and weaker
 * machines. Each rule stands in an #ifndef NO_x: run.sh compiles it out and expects an error. */

/* The sleeping process's counter, counted up by everyone who rings. Only whether it still is what a
 * thread saw matters: that is kept, not the count (so the count cannot wrap here). */
bit counted[2];   /* the bell was counted up since thread t read it */
bit asleep[2];    /* thread t sleeps in the kernel on the bell */

#define read_bell() counted[t] = 0

/* Count up, then wake: a thread that is about to sleep finds another count than it saw. */
inline ring()
{
#ifndef NO_BELL_COUNT
    d_step { counted[0] = 1; counted[1] = 1 }
#endif
    d_step {
#ifndef NO_WAKE_ALL
        asleep[0] = 0;
        asleep[1] = 0
#else
        if
        :: asleep[0] -> asleep[0] = 0
        :: else -> asleep[1] = 0
        fi
#endif
    }
}

/* Whoever finds the flag set clears it, then rings; sleepers only set it, each time anew. Exchanging the
 * flag drains the store buffer. */
inline ring_if(flag, drained)
{
    if
#ifndef NO_CLEAR_BEFORE_RING
    :: d_step { flag && drained -> flag = 0 }
        ring()
#else
    :: flag && drained ->
        ring();
        flag = 0
#endif
    :: !flag
    fi
}

/* Whoever finds the flag set rings; whoever waits keeps it up for as long as he waits. */
inline ring_while(flag)
{
    if
    :: flag -> ring()
    :: !flag
    fi
}

/* The kernel compares and queues in one step. */
inline sleep()
{
    d_step {
        if
        :: !counted[t] -> asleep[t] = 1
        :: else
        fi
    }
    if
    :: !asleep[t]
#if defined(STREAM) && !defined(NO_SLICES)
    :: asleep[t] = 0 /* the end of a slice */
#endif
    fi
}

#ifndef WAIT_SLOT

#define FRAMES 2           /* one for each thread */

byte head;                 /* frames published */
byte late_head;            /* the same, before it has left the owner's store buffer */
bit linked;                /* the reader's page is in the list that the owner walks */
bit armed;                 /* in the reader's page, set by both threads */
bit late_armed[2];         /* thread t's store of it is in its store buffer */
byte cursor;               /* frames taken (the reader's own memory) */
bit owner_dead;
bit closed;                /* the reader's service thread has noticed */

active proctype Owner()
{
    bit seen;
    {
        do
        :: late_head < FRAMES ->
#ifdef EARLY
            if /* without a fence: as far as the owner happens to see */
            :: linked -> ring_if(armed, 1)
            :: skip
            fi;
#endif
            late_head++;
#ifdef NO_FENCE_BEFORE_LIST
            seen = linked;
#endif
#ifndef NO_PUBLISH_FENCE
            head == late_head;
#endif
#ifndef NO_FENCE_BEFORE_LIST
            seen = linked;
#endif
            if
#ifndef NO_SECOND_RING
            :: seen -> ring_if(armed, head == late_head)
#endif
            :: else
            fi
        :: else -> break
        od;
        cursor == FRAMES /* nothing else may have to happen before all is taken */
    } unless { owner_dead };
    owner_dead = 1
}

active proctype Memory()
{
end:
    do
    :: head < late_head -> head++
    :: d_step { late_armed[0] -> late_armed[0] = 0; armed = 1 }
    :: d_step { late_armed[1] -> late_armed[1] = 0; armed = 1 }
    od
}

#ifdef DEATH
active proctype Death()
{
    owner_dead = 1
}
#endif

/* The reader's service thread: first the news, then the bell. A dead processor's stores have drained. */
active proctype Service()
{
    owner_dead && head == late_head;
#ifdef NO_NEWS_FIRST
    ring();
    closed = 1
#else
    closed = 1;
#ifndef NO_DEATH_RING
    ring()
#endif
#endif
}

proctype Thread(bit t)
{
    bit last;
    linked;
again:
#ifndef NO_CLOSED_FIRST
    last = closed;
#endif
    if
    :: d_step { cursor < head -> cursor++ }
        goto out
    :: cursor == head
    fi;
#ifdef NO_CLOSED_FIRST
    last = closed;
#endif
    if
    :: last ->
        assert(cursor == head); /* what a dead owner has published is returned first */
        goto out
    :: else
    fi;
#ifndef NO_BELL_FIRST
    read_bell();
#endif
    late_armed[t] = 1;
#ifndef NO_ARM_FENCE
    !late_armed[t];
#endif
#ifndef NO_LOOK_AGAIN
    if
    :: cursor < head || closed -> goto woken
    :: else
    fi;
#endif
#ifdef NO_BELL_FIRST
    read_bell();
#endif
    sleep();
woken:
#ifdef NO_RINGER_CLEARS
    armed = 0; /* the flag that the other thread may have set just now */
#endif
    goto again;
out:
    skip
}

/* The owner's service thread: the reader joins. */
active proctype Link()
{
    linked = 1
}

init
{
    atomic { run Thread(0); run Thread(1) }
}

#else /* WAIT_SLOT */

/* Thread 0 waits for reader 1 to join and for a slot that reader 0 alone keeps, thread 1 for one that
 * both keep: by leasing its frame, or by not having taken it yet. */
bit entry[2] = {1, 0};     /* reader 0 holds a frame */
bit untaken[2] = {0, 1};   /* reader 1 has yet to take it */
bit late_clear[2];         /* the reader's store of 0 to its entry is in its store buffer */
bit late_taken;            /* reader 1's store of its cursor is in its store buffer */
bit waiting[2];            /* in the pages, set by the owner's threads */
byte waiters;              /* threads that wait (the owner's own memory) */
bit contended;             /* a thread has passed over a slot that another tries (the owner's own memory) */
bit owned;                 /* a thread of the owner tries the slot (its own memory); a loan's end always rings */
bit late_idle;             /* its store of 0 there is in its store buffer */
bit late_waiting[4];       /* the same in the store buffers: of thread t, for page p, at 2t + p */
bit linked[2] = {1, 0};    /* the page is in the owner's list */
bit dead[2];
bit gone[2];               /* the owner's service thread has noticed */

#define keeps(p) (!gone[p] && (entry[p] || untaken[p]))

active proctype Memory()
{
end:
    do
    :: d_step { late_clear[0] -> late_clear[0] = 0; entry[0] = 0 }
    :: d_step { late_clear[1] -> late_clear[1] = 0; entry[1] = 0 }
    :: d_step { late_taken -> late_taken = 0; untaken[1] = 0 }
    :: d_step { late_idle -> late_idle = 0; owned = 0 }
    :: d_step { late_waiting[0] -> late_waiting[0] = 0; waiting[0] = 1 }
    :: d_step { late_waiting[1] -> late_waiting[1] = 0; waiting[1] = 1 }
    :: d_step { late_waiting[2] -> late_waiting[2] = 0; waiting[0] = 1 }
    :: d_step { late_waiting[3] -> late_waiting[3] = 0; waiting[1] = 1 }
    od
}

/* A thread raises the flags once for all of its wait and counts itself; the last one to stop waiting
 * takes them down, and raises them again for a thread that began meanwhile. That thread may have looked
 * before a reader that found the flag down: it must look again. */
proctype Thread(bit t)
{
    bit again;
    waiters++;
    late_waiting[2 * t] = 1;
    if
    :: linked[1] -> late_waiting[2 * t + 1] = 1
    :: else
    fi;
#ifndef NO_WAIT_FENCE
    !late_waiting[2 * t] && !late_waiting[2 * t + 1];
#endif
look:
#ifndef NO_BELL_FIRST
    read_bell();
#endif
    if
    :: owned ->
#ifndef NO_CONTENDED
        contended = 1; /* whoever passes a slot over says so, then looks once more */
#endif
        if
        :: owned -> skip
        :: else -> goto look
        fi
    :: !owned && (!linked[1] || keeps(0)) -> skip
    :: else ->
        if
        :: t == 1 && keeps(1) -> skip
        :: else -> goto found
        fi
    fi;
#ifdef NO_BELL_FIRST
    read_bell();
#endif
    sleep();
    goto look;
found:
    waiters--;
    if
    :: waiters == 0 ->
        waiting[0] = 0;
        waiting[1] = 0;
#ifndef NO_RAISE_AGAIN
        if
        :: waiters != 0 ->
            d_step { waiting[0] = 1; waiting[1] = 1 }
#ifndef NO_RING_AGAIN
            ring()
#endif
        :: else
        fi
#endif
    :: else
    fi
}

#ifdef THIRD
/* A third thread that does not wait: it makes the slot its own, finds it leased and gives it up. Whoever waits
 * may have looked meanwhile, and the reader may have released before the flags were up. */
active proctype Third()
{
    owned = 1;
    late_idle = 1;
#ifndef NO_GIVE_UP_FENCE
    !late_idle;
#endif
#ifndef NO_RING_ON_GIVE_UP
    if
    :: d_step { contended -> contended = 0 }
        if
        :: waiters != 0 -> ring()
        :: else
        fi
    :: !contended
    fi
#endif
}
#endif

inline clear_entry(p)
{
    late_clear[p] = 1;
#ifndef NO_RELEASE_FENCE
    !late_clear[p]
#endif
}

proctype Reader0()
{
    {
#ifdef STREAM
        entry[0] = 0 /* the device cannot ring */
#else
        clear_entry(0);
        ring_while(waiting[0])
#endif
    } unless { dead[0] }
}

proctype Reader1()
{
    {
        linked[1];
        if
        :: entry[1] = 1 /* it leases the frame before it takes it */
        :: skip         /* it skips the frame */
        fi;
        late_taken = 1;
#ifndef NO_TAKE_FENCE
        !late_taken;
#endif
#ifndef NO_RING_ON_TAKE
        ring_while(waiting[1]);
#endif
        if
        :: entry[1] ->
            clear_entry(1);
            ring_while(waiting[1])
        :: else
        fi;
        if
        :: true
        :: entry[1] = 1; /* it tries to lease the frame again, and fails */
            clear_entry(1);
#ifndef NO_RING_ON_CLEAR
            ring_while(waiting[1])
#endif
        fi
    } unless { dead[1] }
}

#ifdef DEATH
active proctype Death()
{
    if
    :: dead[0] = 1
    :: true
    fi;
    dead[1] = 1
}
#endif

#ifndef NO_DEATH_RING
#define ring_for_death() ring()
#else
#define ring_for_death() skip
#endif

/* The owner's service thread: links reader 1, notices deaths; first the news, then the bell. */
active proctype Service()
{
    linked[1] = 1;
#ifndef NO_JOIN_FLAG
    if
    :: waiters != 0 -> waiting[1] = 1
    :: else
    fi;
#endif
#ifndef NO_JOIN_RING
    ring();
#endif
end:
    do
    :: d_step { dead[0] && !gone[0] -> gone[0] = 1 }
        ring_for_death()
    :: d_step { dead[1] && !gone[1] -> gone[1] = 1 }
        ring_for_death()
    od
}

init
{
    atomic {
#ifndef ONE_THREAD
        run Thread(0);
#endif
        run Thread(1);
        run Reader0();
        run Reader1()
    }
}
#endif
