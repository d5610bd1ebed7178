/* Frames that a GPU works on: published before they are finished, read by streams that wait for them.
 *
 * The owner's thread claims slots and publishes frames on STREAMS streams; each stream is a process that
 * fills the slot, writes the frame's number into the gate of every reader that was there, then into
 * `done`. Whoever comes first completes the frame: the owner's thread, which looks before it claims, or
 * the owner's watching thread. Readers that order themselves on a GPU lease pending frames, make their
 * own stream wait for the gate, use the frame twice, clear the entry, all in the stream. One that the
 * CPU reads, late joiners, leavers, a stream that fails, deaths at any step (with streams that run on
 * for a while), and a reader's reader (-DDOWN) come with the flags below. Memory is sequentially
 * consistent; claiming is that of lease.pml, shortened. Each rule stands in an #ifndef NO_x: run.sh
 * compiles it out and expects an error.
 *
 * Frame n has generation 2n. Names that begin with `true_` are the observer's. */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef WRITES
#define WRITES 3
#endif
#ifndef STREAMS
#define STREAMS 1
#endif
#ifndef READERS
#define READERS 1 /* that order themselves on a GPU */
#endif
#ifndef LATE
#define LATE 0 /* bit r: reader r joins at any time; else it is there from the beginning */
#endif
#ifdef CPU
#define PLACES (READERS + 1) /* and one that is not */
#else
#define PLACES READERS
#endif
/* -DFAIL: stream 0 may fail at any step. -DOWNER_DIES. -DUNMARKED: the owner's life word is not marked,
 * only the lifeline hangs up. -DREADER_DIES: reader 0 may. -DLEAVE: readers leave, and their gates are
 * unmapped. -DTOLD: the owner's streams cannot write words: they call functions of the owner, one after
 * another and perhaps late, and `done` is what the driver says when it is asked. -DLOOKS: the readers'
 * streams cannot wait for words: their threads do it. -DSTARTED: frame 1 is there. -DALONE: nobody but the owner's thread completes. -DDOWN:
 * reader 0 publishes what its stream makes of frame 1, to a reader of its own. */

#define claimed(g) ((g) | 129)
#define is_frame(g) ((g) != 0 && ((g) & 129) == 0)

#ifdef NO_ODD_POISON
#define POISON 2
#else
#define POISON 1
#endif

/* A process's end: the kernel marks the life word, sibling threads may still run, then all are gone. The
 * lifeline hangs up when the memory is gone, which may be at once: leases are void from then on. What
 * its streams do meanwhile and later, until they are cut off, nobody knows. */
#define ALIVE 0
#define MARKED 1
#define GONE 2
#define OWNER 0
#define reader_life(r) life[(r) + 1]

/* Of a stream of a reader. */
#define WAIT 1
#define USE 2
#define SEND 3
#define CLEAR 4

/* What became of a frame. */
#define AGAIN 0
#define COMPLETE 1
#define INCOMPLETE 2
#define OPEN 3    /* its gate is */
#define DOUBTED 4 /* but its owner is dying */

/* What cannot happen costs no states. */
#ifdef OWNER_DIES
#define OWNER_GONE (life[OWNER] == GONE)
#else
#define OWNER_GONE false
#endif
#ifdef READER_DIES
#define READER_GONE(r) (reader_life(r) == GONE)
#else
#define READER_GONE(r) false
#endif
#if defined(OWNER_DIES) || defined(READER_DIES)
#define DEATHS
#endif
#if defined(OWNER_DIES) || defined(FAIL)
#define STOPPED(x) (cut[OWNER] || broken[x])
#else
#define STOPPED(x) false
#endif
#ifdef READER_DIES
#define CUT(r) cut[(r) + 1]
#else
#define CUT(r) false
#endif

byte life[READERS + 1];
bit cut[READERS + 1];      /* the streams of the dead run no more */
bit broken[STREAMS];       /* the stream has failed: nothing in it runs any more */

byte gen[SLOTS];           /* the slots' words */
byte pending[SLOTS];       /* generation that a GPU works on */
byte failed[SLOTS];        /* generation that was given up */
byte head;
bit loaned[SLOTS];         /* a writer has the slot (the owner's own memory, as the next five) */
byte work[SLOTS];          /* generation to be completed */
byte work_on[SLOTS];       /* its stream */
byte done[SLOTS];          /* written by streams */
#ifdef TOLD
byte asked[STREAMS];       /* calls that the stream was told to make */
byte came[STREAMS];        /* and has made */
byte ticket[SLOTS];        /* of the frame in the slot */
chan calls[STREAMS] = [WRITES] of {byte}; /* the slot that each was made for, which nobody looks at */
#endif
bit turn[WRITES + 2];      /* bit n: head may pass frame n */
byte begun;
byte list;                 /* bit r: reader r is on the list that the owner walks */
byte walking;              /* threads of the owner that look at a list right now */
byte last_gated[READERS];  /* newest frame whose gate a stream writes */
#ifdef LEAVE
bit gone[READERS];         /* the reader has left */
bit closing[READERS];      /* it waits for its streams before it does (its own memory) */
#endif

byte entry[PLACES];
byte gate[READERS * SLOTS];
byte poisoned[READERS * SLOTS];

/* What streams were told to do, in order. */
chan queue[STREAMS] = [SLOTS + 1] of {byte, byte, byte}; /* slot, generation, whose gates */
chan tasks[READERS] = [8] of {byte, byte, byte};         /* task, slot, generation */

byte true_data[SLOTS];     /* the frame whose bytes are in the slot, 0: they are being written */
byte true_named[SLOTS];    /* the last frame of the slot that anybody was told of */
bit true_failed[WRITES + 1];
bit true_torn[READERS];    /* the reader's stream has read something else than its frame */
bit true_sure[READERS];    /* and the reader was told that the frame is complete */
bit true_mapped[READERS];  /* the owner has the gates mapped, for itself and its GPU */

#ifdef DOWN
/* The pool of reader 0: one slot, one frame, made by its stream. */
#define FRAME 2
byte down_gen;
byte down_pending;
byte down_done;
byte down_gate;
byte down_poisoned;
byte down_failed;          /* never */
chan down_tasks = [2] of {byte};
bit true_down_torn;        /* the frame was made of torn bytes, or of none */
bit true_down_bad;         /* the reader's stream has read it when it was */
bit true_down_sure;        /* and the reader was told that the frame is complete */
#endif

#define gate_of(r, s) gate[(r) * SLOTS + (s)]
#define poisoned_of(r, s) poisoned[(r) * SLOTS + (s)]

#ifdef CPU
#define void(i) ((i) < READERS && reader_life(i) == GONE)
#else
#define void(i) (reader_life(i) == GONE)
#endif
#define holds(i, s) (entry[i] == gen[s] && !void(i))
#if PLACES > 1
#define held(s) (holds(0, s) || holds(1, s))
#else
#define held(s) holds(0, s)
#endif
/* A frame that was given up may still be held, too. */
#ifdef FAIL
#ifdef NO_FAILED_HELD
#define is_given_up(s) false
#else
#define is_given_up(s) ((gen[s] & 1) == 1 && failed[s] != 0)
#endif
#else
#define is_given_up(s) false
#endif
#if PLACES > 1
#define held_failed(s) ((entry[0] == failed[s] && !void(0)) || (entry[1] == failed[s] && !void(1)))
#else
#define held_failed(s) (entry[0] == failed[s] && !void(0))
#endif
#if SLOTS > 1
#define is_spared(s) (gen[s] >= head)
#else
#define is_spared(s) (gen[s] > head)
#endif
/* A writer's first look: only for blocking, but for frames that were given up, which nobody can lease
 * any more. */
#define may_take(s)                                                                                \
    (!loaned[s] && gen[s] < 129 && !(is_frame(gen[s]) && (is_spared(s) || held(s))) &&             \
     !(is_given_up(s) && held_failed(s)))
/* A frame that somebody may complete, or give up. */
#define is_ready(s) (work[s] != 0 && (done[s] >= work[s] || broken[work_on[s]]))

/* ---- the owner ---- */

/* Write `value` to the gates of `set`; those of n only if they have not reached g. */
inline one_gate(n, value, always)
{
    d_step {
        if
        :: (set >> n) & 1 ->
            assert(true_mapped[n]); /* nobody writes gates that are unmapped */
            if
            :: always || gate_of(n, s) < g -> gate_of(n, s) = value
            :: else
            fi
        :: else
        fi
    }
}

inline write_gates(value, always)
{
    one_gate(0, value, always);
#if READERS > 1
    one_gate(1, value, always);
#endif
}

inline head_advance()
{
    turn[g / 2] = 1;
#ifdef NO_TURNS
    if
    :: head < g -> head = g
    :: else
    fi;
    assert(head == 2 || turn[head / 2 - 1]) /* no frame is passed over */
#else
    do
    :: turn[head / 2 + 1] -> head = head + 2
    :: else -> break
    od
#endif
}

inline complete_whole()
{
#if defined(NO_GENERATION_FIRST) || defined(NO_LIST_AFTER_GENERATION)
    d_step { assert(true_data[s] == g); gen[s] = g }
#endif
#ifndef NO_LIST_AFTER_GENERATION
    d_step { walking++; set = list }
#endif
#ifndef NO_RAISE
    write_gates(g, false)
#endif
}

/* Frame g of slot s was found finished, or (f) failed. */
inline complete()
{
    atomic {
#ifdef NO_SWAP
        mine = 1;
#else
        mine = (work[s] == g);
#endif
        if
        :: mine -> work[s] = 0
        :: else
        fi
    }
    if
#ifdef NO_GENERATION_FIRST
    :: d_step { mine && !f -> pending[s] = 0 }
        complete_whole()
#elif defined(NO_LIST_AFTER_GENERATION)
    :: d_step { mine && !f -> walking++; set = list }
        complete_whole()
#else
    :: d_step { mine && !f -> assert(true_data[s] == g); gen[s] = g } /* what is seen is complete */
        complete_whole()
#endif
    :: d_step {
           mine && f ->
#ifndef NO_FAILED_FIRST
           failed[s] = g;
#endif
           true_failed[g / 2] = 1
       }
        d_step { walking++; set = list }
#ifndef NO_RAISE_FAILED
        write_gates(g + POISON, false)
#endif
    :: !mine
    fi;
    if
    :: d_step {
           mine ->
           walking--;
#ifndef NO_PENDING_FIRST
           pending[s] = 0;
#endif
#ifdef NO_FAILED_FIRST
           failed[s] = (f -> g : failed[s]);
#endif
           set = 0
       }
        d_step {
#ifdef NO_HEAD_OVER_FAILED
            if
            :: !f -> head_advance()
            :: else
            fi;
#else
            head_advance();
#endif
            loaned[s] = 0;
#ifndef NO_PENDING_FIRST
            mine = 0; f = 0; g = 0; s = 0
#endif
        }
#ifdef NO_PENDING_FIRST
        d_step {
            if
            :: pending[s] == g -> pending[s] = 0
            :: else
            fi;
            mine = 0; f = 0; g = 0; s = 0
        }
#endif
    :: d_step { !mine -> f = 0; g = 0; s = 0 }
    fi
}

inline find_ready(n)
{
    s = n;
    g = work[n];
    f = (done[n] < g)
}

inline scan(n)
{
    d_step { f = f | (entry[n] == g && !void(n)) }
}

proctype Owner()
{
    byte s, g, set, x;
    bit f, mine;
    {
        skip;
    loan:
        do
        :: begun == WRITES -> goto finish
        :: atomic { is_ready(0) -> find_ready(0) }
            complete()
        :: atomic { begun < WRITES && may_take(0) -> s = 0; loaned[0] = 1; g = gen[0] }
            break
#if SLOTS > 1
        :: atomic { is_ready(1) -> find_ready(1) }
            complete()
        :: atomic { begun < WRITES && may_take(1) -> s = 1; loaned[1] = 1; g = gen[1] }
            break
#endif
        od;
        if
        :: d_step { is_frame(g) -> gen[s] = claimed(g) }
            scan(0);
#if PLACES > 1
            scan(1);
#endif
            if
            :: d_step { f -> gen[s] = g }
                atomic { loaned[s] = 0; f = 0; s = 0; g = 0; goto loan }
            :: !f
            fi
        :: !is_frame(g)
        fi;
        atomic {
            if
            :: !broken[0] -> x = 0
#if STREAMS > 1
            :: !broken[1] -> x = 1
#else
            :: broken[0] -> gen[s] = 2 * begun + 1; loaned[s] = 0; s = 0; g = 0; goto finish
#endif
            fi;
            begun++;
            g = 2 * begun;
            gen[s] = g - 1
        }
        /* Publish: what the stream is told, then what is said about it. */
        atomic {
            walking++;
#ifdef TOLD
            asked[x]++;
            ticket[s] = asked[x];
#else
            set = list;
            if
            :: set & 1 -> last_gated[0] = g
            :: else
            fi;
#if READERS > 1
            if
            :: set & 2 -> last_gated[1] = g
            :: else
            fi;
#endif
#endif
            queue[x]!s, g, set;
            set = 0
        }
#ifdef NO_PENDING_BEFORE_WORK
        d_step { work_on[s] = x; work[s] = g }
        pending[s] = g;
#else
        d_step { pending[s] = g; true_named[s] = g }
        d_step { work_on[s] = x; work[s] = g }
#endif
        atomic {
            true_named[s] = g;
#ifdef NO_LOANED_WHILE_PENDING
            loaned[s] = 0;
#endif
            walking--;
            x = 0; s = 0; g = 0;
            goto loan
        }
    finish:
        do
        :: atomic { is_ready(0) -> find_ready(0) }
            complete()
#if SLOTS > 1
        :: atomic { is_ready(1) -> find_ready(1) }
            complete()
#endif
        :: head == 2 * begun -> break /* all that was published can be seen */
        od
    } unless {
        d_step { OWNER_GONE -> s = 0; g = 0; set = 0; x = 0; f = 0; mine = 0 }
    }
}

/* The owner's watching thread. */
proctype Settler()
{
    byte s, g, set;
    bit f, mine;
    {
        skip;
    end:
        do
        :: atomic { is_ready(0) -> find_ready(0) }
            complete()
#if SLOTS > 1
        :: atomic { is_ready(1) -> find_ready(1) }
            complete()
#endif
        od
    } unless {
        d_step { OWNER_GONE -> s = 0; g = 0; set = 0; f = 0; mine = 0 }
    }
}

/* A stream of the owner. */
proctype Producer(byte x)
{
    byte s, g, set;
    {
        skip;
    end:
        do
        :: atomic { queue[x]?s, g, set -> true_data[s] = 0 }
            true_data[s] = g;
#ifdef NO_GATES_FIRST
            done[s] = g;
#endif
            write_gates(g, true);
#ifdef NO_GATES_FIRST
            d_step { s = 0; g = 0; set = 0 }
#elif defined(TOLD)
            d_step { done[s] = g; calls[x]!s; s = 0; g = 0; set = 0 }
#else
            d_step { done[s] = g; s = 0; g = 0; set = 0 }
#endif
        od
    } unless {
        d_step {
            STOPPED(x) ->
            s = 0; g = 0; set = 0;
            do
            :: nempty(queue[x]) -> queue[x]?s, g, set; s = 0; g = 0; set = 0
            :: empty(queue[x]) -> break
            od
        }
    }
}

#ifdef TOLD
#ifdef NO_TICKET
#define is_called(n) (work[n] != 0 && n == made_for)
#else
#define is_called(n) (work[n] != 0 && work_on[n] == x && came[x] >= ticket[n])
#endif
inline look_called(n)
{
    if
    :: atomic { is_called(n) -> s = n; g = work[n]; f = 0 }
        complete()
    :: else
    fi
}

/* A thread of the driver in the owner's process: also of a stream that has failed. */
proctype Caller(byte x)
{
    byte s, g, set, made_for;
    bit f, mine;
    {
        skip;
    end:
        do
        :: atomic { calls[x]?made_for -> came[x]++ }
            look_called(0);
#if SLOTS > 1
            look_called(1);
#endif
            made_for = 0
        od
    } unless {
        d_step { OWNER_GONE -> s = 0; g = 0; set = 0; f = 0; mine = 0; made_for = 0 }
    }
}
#endif

#ifdef LEAVE
/* The owner's service thread, when a reader is gone. */
proctype Service(byte r)
{
    {
        skip;
    end:
        gone[r] || reader_life(r) == GONE;
        list = list & ~(1 << r);
#ifndef NO_WAIT_FOR_WALKERS
        walking == 0;
#endif
#ifndef NO_LAST_GATED
        !(work[0] != 0 && work[0] <= last_gated[r]);
#if SLOTS > 1
        !(work[1] != 0 && work[1] <= last_gated[r]);
#endif
#endif
        true_mapped[r] = 0
    } unless {
        life[OWNER] == GONE
    }
}
#endif

/* ---- readers ---- */

#ifdef DOWN
/* Publish what the stream makes of this frame. */
inline send()
{
    tasks[r]!SEND, s, g;
    down_pending = FRAME;
    cursor = 255
}
#endif

/* What became of frame g, from words that its reader can see. */
inline look(a_poisoned, a_failed, a_gate, a_gen, a_life)
{
#if defined(FAIL) && !defined(NO_LOOK_FAILED)
    d_step {
        if
        :: a_failed == g -> res = INCOMPLETE
        :: else -> res = AGAIN
        fi
    }
#define UNDECIDED (res == AGAIN)
#else
#define UNDECIDED true
#endif
#ifdef NO_POISONED_LAST
    d_step {
        if
        :: a_poisoned == g -> res = INCOMPLETE
        :: else -> res = AGAIN
        fi
    }
#undef UNDECIDED
#define UNDECIDED (res == AGAIN)
#endif
    d_step {
        if
        :: UNDECIDED && a_gate == g + POISON -> res = INCOMPLETE
        :: UNDECIDED && a_gate >= g && a_gate != g + POISON -> res = OPEN
        :: UNDECIDED && a_gate < g -> res = AGAIN
        :: else
        fi
    }
#if defined(DEATHS) && !defined(NO_LIFE_LOOK)
    /* A dead one's stream may have worked on what was taken away under it. Its owner was alive after
     * its gate was seen open, or saw it complete itself: else it may not be what it should be. */
    d_step {
        if
        :: res == OPEN && a_life != ALIVE -> res = DOUBTED
        :: else
        fi
    }
#endif
    d_step {
        if
        :: res == OPEN -> res = COMPLETE
        :: (res == AGAIN || res == DOUBTED) && (a_gen == g || a_gen == claimed(g)) -> res = COMPLETE
        :: res == DOUBTED && a_gen != g && a_gen != claimed(g) -> res = INCOMPLETE
        :: else
        fi
    }
#if defined(DEATHS) && !defined(NO_LOOK_POISONED) && !defined(NO_POISONED_LAST)
    /* Last: its gate may have been opened poisoned, then written by the dying one's stream. */
    d_step {
        if
        :: res == COMPLETE && a_poisoned == g -> res = INCOMPLETE
        :: else
        fi
    }
#endif
}

/* The owner is dying: open the gate of what it left pending (two looks, taken for one). */
#define is_left(a_pending, a_gate) (a_pending != 0 && a_gate < a_pending)
inline open_left(a_poisoned, a_gate)
{
#ifdef NO_POISONED_FIRST
    raise_left(a_gate);
    d_step { note(a_poisoned); p = 0 }
#else
    d_step { note(a_poisoned) }
    d_step { raise_left(a_gate); p = 0 }
#endif
}

inline give_up(a_pending, a_poisoned, a_gate)
{
    if
    :: d_step { is_left(a_pending, a_gate) -> p = a_pending }
        open_left(a_poisoned, a_gate)
    :: else
    fi
}

inline raise_left(a_gate)
{
    if
    :: a_gate < p -> a_gate = p + POISON
    :: else
    fi
}

inline note(a_poisoned)
{
    if
#ifndef NO_RAISE_POISONED
    :: a_poisoned >= p
#endif
    :: else -> a_poisoned = p
    fi
}

inline give_up_all()
{
    give_up(pending[0], poisoned_of(r, 0), gate_of(r, 0));
#if SLOTS > 1
    give_up(pending[1], poisoned_of(r, 1), gate_of(r, 1));
#endif
}

#ifdef UNMARKED
#ifdef NO_HANGUP_LOOK
#define sees_death(a_life) false
#else
#define sees_death(a_life) (a_life == GONE)
#endif
#else
#define sees_death(a_life) (a_life >= MARKED)
#endif
#ifdef NO_WATCH_CLOSING
#define WATCHED && !closing[r]
#else
#define WATCHED
#endif
#ifdef NO_LOOK_UNTIL_HANGUP
#define LAST_LOOK true
#else
#define LAST_LOOK (life[OWNER] == GONE)
#endif
#if SLOTS > 1
#define nothing_left (!is_left(pending[0], gate_of(r, 0)) && !is_left(pending[1], gate_of(r, 1)))
#else
#define nothing_left (!is_left(pending[0], gate_of(r, 0)))
#endif

/* A reader's watching thread. It looks until it has looked after the owner's last step; looks that
 * find nothing are left out. */
proctype Watch(byte r)
{
    byte p;
    {
        skip;
    end:
        sees_death(life[OWNER]) WATCHED;
        do
        :: d_step { is_left(pending[0], gate_of(r, 0)) -> p = pending[0] }
            open_left(poisoned_of(r, 0), gate_of(r, 0))
#if SLOTS > 1
        :: d_step { is_left(pending[1], gate_of(r, 1)) -> p = pending[1] }
            open_left(poisoned_of(r, 1), gate_of(r, 1))
#endif
#ifdef NO_HANGUP_FIRST
        :: nothing_left ->
            LAST_LOOK;
            break
#else
        :: nothing_left && LAST_LOOK -> break
#endif
        od
    } unless {
        d_step { READER_GONE(r) -> p = 0 }
    }
}

#ifdef NO_ENTRY_ZERO
#define is_free(r) (len(tasks[r]) < 2)
#else
#define is_free(r) (entry[r] == 0)
#endif

proctype Reader(byte r)
{
    byte s, g, p, res, cursor;
    bit was_pending;
    {
        list = list | (1 << r);
    idle:
        atomic { s = 0; g = 0; res = 0; was_pending = 0 }
    end:
        if
#ifdef LEAVE
        :: goto out
#endif
        :: atomic { is_free(r) && true_named[0] > cursor -> s = 0; g = true_named[0]; cursor = g }
#if SLOTS > 1
        :: atomic { is_free(r) && true_named[1] > cursor -> s = 1; g = true_named[1]; cursor = g }
#endif
        fi;
        was_pending = (pending[s] == g);
        if
        :: was_pending || gen[s] == g || gen[s] == claimed(g) -> skip
        :: else -> goto idle
        fi;
        entry[r] = g;
#ifdef NO_PENDING_LOOK_FIRST
        if
        :: gen[s] == g -> goto leased
        :: else
        fi;
#endif
#ifndef NO_PENDING_LOOK
        if
        :: was_pending && pending[s] == g -> goto leased
        :: else
        fi;
#endif
    check:
        if
#ifdef NO_PENDING_LOOK_FIRST
        :: was_pending -> goto stale
#endif
        :: gen[s] == g || (gen[s] == claimed(g) && OWNER_GONE) -> goto leased
        :: atomic { gen[s] == claimed(g) && !OWNER_GONE -> gen[s] != claimed(g) || OWNER_GONE }
            goto check
        :: gen[s] != g && gen[s] != claimed(g) -> goto stale
        fi;
    stale:
        entry[r] = 0;
        assert(gen[s] != g && gen[s] != claimed(g) && pending[s] != g); /* not while it stays */
        goto idle;
    leased:
        atomic { true_torn[r] = 0; true_sure[r] = 0 }
        look(poisoned_of(r, s), failed[s], gate_of(r, s), gen[s], life[OWNER]);
        if
#ifdef LOOKS
        :: atomic {
               res == AGAIN ->
               gate_of(r, s) >= g || failed[s] == g || gen[s] == g || gen[s] == claimed(g)
           }
#else
        :: atomic { res == AGAIN -> tasks[r]!WAIT, s, g }
#endif
#if defined(OWNER_DIES) && !defined(NO_LOOK_AFTER_WAIT)
            if
            :: life[OWNER] >= MARKED -> give_up_all()
            :: else
            fi
#endif
        :: res != AGAIN
        fi;
        tasks[r]!USE, s, g;
#ifdef DOWN
        send();
#endif
        look(poisoned_of(r, s), failed[s], gate_of(r, s), gen[s], life[OWNER]);
        atomic {
            assert(res != COMPLETE || !true_torn[r]); /* a complete frame is whole */
            /* not without a reason */
            assert(res != INCOMPLETE || life[OWNER] != ALIVE || true_failed[g / 2]);
            true_sure[r] = (res == COMPLETE);
#ifdef NO_STREAM_CLEARS
            entry[r] = 0;
#else
            tasks[r]!CLEAR, s, g;
#endif
            goto idle
        }
#ifdef LEAVE
    out:
        cursor = 0;
        closing[r] = 1;
        entry[r] == 0;
        gone[r] = 1
#endif
    } unless {
        d_step { READER_GONE(r) -> s = 0; g = 0; p = 0; res = 0; cursor = 0; was_pending = 0 }
    }
}

inline read_frame()
{
    if
    :: true_data[s] != g ->
        assert(!true_sure[r] || READER_GONE(r)); /* a complete frame is whole */
        true_torn[r] = 1
    :: else
    fi
}

/* A stream of a reader. */
proctype Consumer(byte r)
{
    byte s, g, i;
    {
        skip;
    end:
        do
        :: atomic { tasks[r]?WAIT, s, g ->
               gate_of(r, s) >= g; /* for ever, if nobody opens it */
               s = 0; g = 0 }
        :: atomic { tasks[r]?USE, s, g -> read_frame() }
            d_step { read_frame(); s = 0; g = 0 }
        :: atomic { tasks[r]?CLEAR, s, g -> entry[r] = 0; s = 0; g = 0 }
#ifdef DOWN
        :: atomic {
               tasks[r]?SEND, s, g ->
               true_down_torn = true_torn[r];
               down_gate = FRAME;
               s = 0; g = 0 }
            down_done = FRAME
#endif
        od
    } unless {
        d_step {
            CUT(r) ->
            s = 0; g = 0;
            do
            :: nempty(tasks[r]) -> tasks[r]?i, s, g; i = 0; s = 0; g = 0
            :: empty(tasks[r]) -> break
            od
        }
    }
}

#ifdef CPU
/* A reader that the CPU reads: by handle, as soon as it likes. */
proctype CpuReader()
{
    byte s, g, cursor;
idle:
    atomic { s = 0; g = 0 }
end:
    if
    :: atomic { true_named[0] > cursor -> s = 0; g = true_named[0]; cursor = g }
#if SLOTS > 1
    :: atomic { true_named[1] > cursor -> s = 1; g = true_named[1]; cursor = g }
#endif
    fi;
#ifdef NO_CPU_GENERATION
#define may_see (gen[s] == g || pending[s] == g)
#else
#define may_see (gen[s] == g)
#endif
    if
    :: may_see || gen[s] == claimed(g) -> skip
    :: else -> goto idle
    fi;
    entry[READERS] = g;
check:
    if
    :: may_see || (gen[s] == claimed(g) && OWNER_GONE) -> skip
    :: atomic { gen[s] == claimed(g) && !OWNER_GONE -> gen[s] != claimed(g) || OWNER_GONE }
        goto check
    :: !may_see && gen[s] != claimed(g) -> goto clear
    fi;
    assert(true_data[s] == g); /* never torn, never pending */
    assert(true_data[s] == g);
clear:
    entry[READERS] = 0;
    goto idle
}
#endif

#ifdef DOWN
/* The owner, as far as reader 0 has to do with it: it takes frame 1 away as soon as it may. */
proctype Overwriter()
{
    do
    :: d_step { entry[0] != 2 || void(0) -> gen[0] = claimed(2) }
        if
        :: d_step { entry[0] != 2 || void(0) -> gen[0] = 3; true_data[0] = 0 }
            break
        :: d_step { entry[0] == 2 && !void(0) -> gen[0] = 2 }
        fi
    od
}

/* Reader 0 completes its frame. */
proctype DownSettler()
{
    {
        skip;
    end:
        down_pending != 0 && down_done == FRAME;
        down_gen = FRAME;
        down_pending = 0
    } unless {
        reader_life(0) == GONE
    }
}

/* Who reads it with a stream. */
proctype DownReader()
{
    byte g, p, res;
end:
    atomic { down_pending == FRAME || down_gen == FRAME -> g = FRAME }
    look(down_poisoned, down_failed, down_gate, down_gen, reader_life(0));
    if
    :: res == AGAIN ->
        down_tasks!WAIT;
        if
        :: reader_life(0) >= MARKED -> give_up(down_pending, down_poisoned, down_gate)
        :: else
        fi
    :: else
    fi;
    down_tasks!USE;
    look(down_poisoned, down_failed, down_gate, down_gen, reader_life(0));
    d_step {
        assert(res != COMPLETE || !true_down_bad); /* a complete frame is whole */
        assert(res != INCOMPLETE || reader_life(0) != ALIVE); /* has a reason */
        true_down_sure = (res == COMPLETE)
    }
}

proctype DownConsumer()
{
    byte task;
end:
    do
    :: down_tasks?task;
        if
        :: task == WAIT -> down_gate >= FRAME
        :: task == USE ->
            d_step {
                if
                :: true_down_torn ->
                    assert(!true_down_sure); /* a complete frame is whole */
                    true_down_bad = 1
                :: else
                fi
            }
        fi;
        task = 0
    od
}

proctype DownWatch()
{
    byte p;
end:
    reader_life(0) >= MARKED;
    do
    :: d_step { is_left(down_pending, down_gate) -> p = down_pending }
        open_left(down_poisoned, down_gate)
    :: !is_left(down_pending, down_gate) && reader_life(0) == GONE -> break
    od
}
#endif

/* ---- what may happen ---- */

proctype Death(byte who)
{
    byte i;
    if
    :: true
    :: true ->
#ifndef UNMARKED
        life[who] = MARKED;
#endif
        d_step {
            life[who] = GONE;
            if
            :: who == OWNER -> /* its own memory is gone, too */
                begun = 0; walking = 0;
                do
                :: i < SLOTS -> work[i] = 0; work_on[i] = 0; loaned[i] = 0; i++
                :: else -> break
                od;
                i = 0;
                do
                :: i < WRITES + 2 -> turn[i] = 0; i++
                :: else -> break
                od;
                i = 0
            :: else
            fi
        }
    fi
}

/* The device takes the streams of the dead off, at any time. */
proctype Cut(byte who)
{
end:
    life[who] != ALIVE;
    cut[who] = 1
}

proctype Fault()
{
    if
    :: true
    :: broken[0] = 1
    fi
}

init
{
    byte i;
    atomic {
#ifdef STARTED
        begun = 1; turn[1] = 1; head = 2;
        gen[0] = 2; done[0] = 2; gate[0] = 2; true_data[0] = 2; true_named[0] = 2;
#endif
#ifdef DOWN
        true_down_torn = 1;
#endif
#ifdef DOWN
        run Overwriter();
#else
        run Owner();
#ifndef ALONE
        run Settler();
#endif
        i = 0;
        do
        :: i < STREAMS ->
            run Producer(i);
#ifdef TOLD
            run Caller(i);
#endif
            i++
        :: else -> break
        od;
#endif
        i = 0;
        do
        :: i < READERS ->
            list = list | ((1 - ((LATE >> i) & 1)) << i);
            true_mapped[i] = 1;
            run Reader(i);
            run Consumer(i);
#if defined(OWNER_DIES)
            run Watch(i);
#endif
#ifdef LEAVE
            run Service(i);
#endif
            i++
        :: else -> break
        od;
#ifdef CPU
        run CpuReader();
#endif
#ifdef OWNER_DIES
        run Death(OWNER);
        run Cut(OWNER);
#endif
#ifdef READER_DIES
        run Death(1);
        run Cut(1);
#endif
#ifdef DOWN
        run DownSettler();
        run DownReader();
        run DownConsumer();
        run DownWatch();
#endif
#ifdef FAIL
        run Fault();
#endif
        i = 0
    }
}
