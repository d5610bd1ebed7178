/* The lease protocol of a pool: who may overwrite which slot, and when.
 *
 * One owner (WRITERS threads) reuses SLOTS slots; up to three readers lease frames through the entries
 * of their pages, hold them twice, hand them to a stream of a GPU that clears its entry later, leave or
 * die at any step; the owner may die at any step too. Memory is sequentially consistent here; what the
 * protocol needs of the memory order is in order.pml, joining and leaving in page.pml, waking in
 * doorbell.pml. Each rule stands in an #ifndef NO_x: run.sh compiles it out and expects an error.
 *
 * Frames are numbered as in the segment: write n has generation 2n, an odd value while it is written,
 * and claimed(g) while the owner makes sure that nobody leases g. Names that begin with `true_` are the
 * observer's: the processes do not act on them, only assertions read them. */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef WRITES
#define WRITES 3
#endif
#ifndef WRITERS
#define WRITERS 1
#endif
#ifndef HOLDS0
#define HOLDS0 2
#endif
#ifndef HOLDS1
#define HOLDS1 1
#endif
#ifndef HOLDS2
#define HOLDS2 0
#endif
#ifndef EVERY
#define EVERY 0 /* bit r: reader r wants every frame (policy `every`); 0: policy `latest` */
#endif
#ifndef THREADS
#define THREADS 1 /* of reader 0; each has one entry when there are two */
#endif
#ifndef STREAM
#define STREAM 0 /* 1: reader 0 also reads with a stream */
#endif
#ifndef DEATHS
#define DEATHS 0 /* bit r: reader r may die; bit READERS: the owner may die */
#endif

#define PLACES (HOLDS0 + HOLDS1 + HOLDS2)
#if HOLDS2
#define READERS 3
#elif HOLDS1
#define READERS 2
#else
#define READERS 1
#endif
#define OWNER READERS
#define NONE 255

#define claimed(g) ((g) | 129)

/* A party's end: the kernel marks the life word, sibling threads may still run, then all are gone. */
#define ALIVE 0
#define MARKED 1
#define GONE 2
#ifdef NO_GRACE
#define NOTICED MARKED
#else
#define NOTICED GONE
#endif

byte gen[SLOTS];     /* slot records; written by the owner */
byte head;           /* generation of the newest frame; written by the owner */
byte entry[PLACES];  /* the pages' lease entries; each written by its reader, or by its stream */
byte taken[READERS]; /* the pages' cursors: every frame up to here was taken; written by the reader */
bit left[READERS];   /* the reader has left: its lifeline is closed */
byte life[READERS + 1];
byte begun;          /* loans so far (the owner's own memory) */
byte finished;       /* threads that have written all (the owner's own memory) */
byte numbered;       /* writes that have a number (the owner's own memory) */
#if WRITERS > 1
bit turn[WRITES + 2]; /* bit n: write n is complete, head may pass it (the owner's own memory) */
#endif
#ifdef REMEMBER
byte found_held[SLOTS]; /* generation that was found leased (the owner's own memory) */
#endif
byte cursor[READERS]; /* generation that the reader returned last (its own memory) */
byte running[READERS]; /* threads of the reader that have not left (its own memory) */
#ifdef FAR
bit far_used;        /* reader 0 has used its last entry: the owner scans it from now on */
#endif

byte stream_entry[READERS]; /* entry + 1 that the reader's stream will clear, 0: the stream is idle */

byte true_frame[SLOTS];    /* whose bytes are complete in the slot, 0: they are being written */
byte true_lease[PLACES];   /* slot + 1 that a thread of the reader may read, by entry */
byte true_stream[READERS]; /* slot + 1 that the reader's stream may read */
byte true_got[READERS];    /* bit n: the reader got write n */
#if WRITERS > 1
bit true_writer[SLOTS];    /* a thread of the owner writes into the slot */
#endif
#ifdef DISTURB
byte true_before;          /* bit i: entry i held its frame when the loan began and since */
#define forget(i) true_before = true_before & ~(1 << (i))
#else
#define forget(i) skip
#endif

#define reader_of(i) ((i) < HOLDS0 -> 0 : ((i) < HOLDS0 + HOLDS1 -> 1 : 2))
#define wants(r) ((EVERY >> (r)) & 1)
#define has_stream(r) ((STREAM >> (r)) & 1)

/* Leases of the dead are void. What a dead reader's stream still reads is not: the device finishes
 * queued work while the process is being taken down. */
#ifdef NO_VOID
#define void(i) (false)
#else
#ifdef NO_STREAM_OUTLIVES
#define void(i) (life[reader_of(i)] >= NOTICED)
#else
#define void(i) (life[reader_of(i)] >= NOTICED && stream_entry[reader_of(i)] != (i) + 1)
#endif
#endif
/* Entries beyond those that a reader ever used are not scanned. */
#ifdef FAR
#define scanned(i) ((i) != HOLDS0 - 1 || far_used)
#else
#define scanned(i) true
#endif
#define over(r) (left[r] || life[r] >= NOTICED)

/* What a loan that waits is waiting for: some slot that it could take. Only for blocking. */
#define is_frame(g) (((g) & 129) == 0)
#define holds(i, s) (gen[s] != 0 && entry[i] == gen[s] && !void(i))
#ifdef NO_TAKEN
#define misses(r, s) false
#else
#define misses(r, s) (wants(r) && !over(r) && taken[r] < gen[s])
#endif
#if PLACES > 1
#define hold1(s) holds(1, s)
#else
#define hold1(s) false
#endif
#if PLACES > 2
#define hold2(s) holds(2, s)
#else
#define hold2(s) false
#endif
#if PLACES > 3
#define hold3(s) holds(3, s)
#else
#define hold3(s) false
#endif
#if READERS > 1
#define miss1(s) misses(1, s)
#else
#define miss1(s) false
#endif
#if READERS > 2
#define miss2(s) misses(2, s)
#else
#define miss2(s) false
#endif
/* The newest frame stays, and so does one that is complete but still waits for its turn. */
#ifdef NO_BELOW_HEAD
#define is_newest(s) (SLOTS > 1 && gen[s] != 0 && gen[s] == head)
#else
#define is_newest(s) (SLOTS > 1 && gen[s] != 0 && gen[s] >= head)
#endif
#define may_take(s)                                                                                \
    (is_frame(gen[s]) && !is_newest(s) && !holds(0, s) && !hold1(s) && !hold2(s) && !hold3(s) &&   \
     !misses(0, s) && !miss1(s) && !miss2(s))
#if SLOTS == 1
#define slot_free may_take(0)
#elif SLOTS == 2
#define slot_free (may_take(0) || may_take(1))
#else
#define slot_free (may_take(0) || may_take(1) || may_take(2))
#endif

/* The owner is about to change the bytes of slot s: nobody may be reading them, no frame may get lost
 * that the policy promised to keep. */
inline check_overwrite(s)
{
    i = 0;
    do
    :: i < PLACES ->
        assert(true_lease[i] != s + 1); /* never torn */
        i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < READERS ->
        assert(true_stream[i] != s + 1); /* never torn */
        assert(!wants(i) || left[i] || life[i] != ALIVE || true_frame[s] == 0 ||
               ((true_got[i] >> (true_frame[s] / 2)) & 1)); /* `every` loses nothing */
        i++
    :: else -> break
    od;
    assert(SLOTS == 1 || true_frame[s] == 0 || true_frame[s] < head); /* the newest stays */
#if WRITERS > 1
    assert(!true_writer[s]); /* one thread writes into a slot */
    true_writer[s] = 1;
#endif
    i = 0;
    true_frame[s] = 0
}

/* -DREMEMBER: the first look is only for frames that a second look once found leased. */
#ifdef REMEMBER
#define looked_for(s) (found_held[s] == gen[s])
#else
#define looked_for(s) true
#endif

/* First look: which slots hold frames that somebody leases, and how far has everybody taken? */
inline scan_all()
{
    avoid = 0;
    least = NONE;
    i = 0;
#ifndef NO_PRESCAN
    do
    :: i < PLACES ->
        d_step {
            if
            :: scanned(i) && entry[i] != 0 && !void(i) ->
                s = 0;
                do
                :: s < SLOTS ->
                    if
                    :: gen[s] == entry[i] && looked_for(s) -> avoid = avoid | (1 << s)
                    :: else
                    fi;
                    s++
                :: else -> break
                od;
                s = 0
            :: else
            fi;
            i++
        }
    :: else -> break
    od;
#endif
    i = 0;
#if EVERY && !defined(NO_TAKEN)
    do
    :: i < READERS ->
        d_step {
            if
            :: wants(i) && !over(i) && taken[i] < least -> least = taken[i]
            :: else
            fi;
            i++
        }
    :: else -> break
    od;
    i = 0
#endif
}

#ifdef NO_NEWEST
#define spared(s) false
#elif defined(NO_BELOW_HEAD)
#define spared(s) (SLOTS > 1 && gen[s] != 0 && gen[s] == newest)
#else
#define spared(s) (SLOTS > 1 && gen[s] != 0 && gen[s] >= newest)
#endif

/* The oldest slot that may be taken; NONE: all are in use. */
inline choose()
{
    d_step {
        s = NONE;
        i = 0;
        do
        :: i < SLOTS ->
            if
            :: is_frame(gen[i]) && !((avoid >> i) & 1) && gen[i] <= least && !spared(i) ->
                if
                :: s == NONE || gen[i] < gen[s] -> s = i
                :: else
                fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        if
        :: s != NONE -> g = gen[s]
        :: else -> g = 0
        fi
    }
}

#ifdef DISTURB
inline check_undisturbed()
{
    i = 0;
    do
    :: i < PLACES ->
        assert(!((true_before >> i) & 1) || true_lease[i] != s + 1); /* a leased slot is left alone */
        i++
    :: else -> break
    od;
    i = 0;
    true_before = 0
}

inline remember_leases()
{
    d_step {
        true_before = 0;
        i = 0;
        do
        :: i < PLACES ->
            true_before = true_before | ((true_lease[i] != 0) << i);
            i++
        :: else -> break
        od;
        i = 0
    }
}
#else
#define check_undisturbed() skip
#define remember_leases() skip
#endif

#if WRITERS == 1
#define NUMBER begun
#else
#define NUMBER numbered
#endif

proctype Writer()
{
    byte s, g, i, avoid, least, n, newest;
    bit found;
    {
        skip;
    loan:
        if
        :: atomic { begun < WRITES -> begun++ }
        :: else -> goto finish
        fi;
    again:
#ifndef PROBE
        slot_free;
#else
        skip; /* the owner keeps probing */
#endif
        remember_leases();
        scan_all();
        newest = head;
    pick:
        choose();
        if
        :: s == NONE -> s = 0; goto again
        :: else
        fi;
#ifndef NO_CLAIM
        d_step {
#ifndef NO_SWAP
            if
#ifdef NO_SAME_FRAME
            :: is_frame(gen[s]) -> g = gen[s]; gen[s] = claimed(g); found = 0
#else
            :: gen[s] == g -> check_undisturbed(); gen[s] = claimed(g); found = 0
#endif
            :: else -> found = 1 /* another thread was faster */
            fi
#else
            gen[s] = claimed(g); found = 0
#endif
        }
        if
        :: found -> found = 0; avoid = avoid | (1 << s); goto pick
        :: else
        fi;
#endif
#ifndef NO_SECOND_SCAN
        if
        :: g != 0 -> /* an entry that reads 0 is free; it does not lease generation 0 */
            do
            :: i < PLACES ->
                d_step {
                    found = found | (scanned(i) && entry[i] == g && !void(i));
                    i++
                }
            :: else -> break
            od;
            i = 0
        :: else
        fi;
        if
        :: found ->
            found = 0;
            avoid = avoid | (1 << s);
#ifndef NO_PUT_BACK
            gen[s] = g;
#endif
#ifdef REMEMBER
            found_held[s] = g;
#endif
            goto pick
        :: else
        fi;
#endif
        avoid = 0;
        g = 0;
        newest = 0;
        least = 0;
#ifdef NO_NUMBER_AT_PUBLISH
        d_step { numbered++; n = numbered }
#endif
#ifdef NO_ODD_FIRST
        d_step { check_overwrite(s) }
        gen[s] = 2 * begun - 1;
#else
        gen[s] = 2 * begun - 1;
        d_step { check_overwrite(s) }
#endif
#ifdef CANCEL
        if
        :: d_step {
               gen[s] = 0;
#if WRITERS > 1
               true_writer[s] = 0;
#endif
#ifndef NO_NUMBER_AT_PUBLISH
               begun--;
#endif
               s = 0
           }
           goto loan
        :: skip
        fi;
#endif
#if WRITERS == 1
        d_step { n = begun; true_frame[s] = 2 * n; gen[s] = 2 * n }
        head = 2 * n;
#else
#ifndef NO_NUMBER_AT_PUBLISH
        d_step { numbered++; n = numbered }
#endif
        d_step { true_frame[s] = 2 * n; true_writer[s] = 0; gen[s] = 2 * n }
#ifdef NO_TURNS
        d_step {
            if
            :: head < 2 * n -> head = 2 * n
            :: else
            fi
        }
#else
        turn[n] = 1;
        do
        :: d_step { turn[head / 2 + 1] -> head = head + 2 }
        :: else -> break
        od;
#endif
#endif
        n = 0;
        s = 0;
        goto loan;
    finish:
        atomic {
            finished++;
            assert(finished < WRITERS || head == 2 * NUMBER); /* what was published can be seen */
        }
        /* Everybody is gone: nothing may be held any more. */
        i = 0;
        do
        :: i < READERS -> (left[i] || life[i] == GONE) && stream_entry[i] == 0; i++
        :: else -> break
        od;
        i = 0;
        d_step {
            do
            :: i < PLACES -> assert(entry[i] == 0 || void(i)); i++ /* no slot is lost */
            :: else -> break
            od;
            i = 0
        }
    } unless {
        atomic { life[OWNER] == GONE -> s = 0; g = 0; i = 0; avoid = 0; least = 0; n = 0; newest = 0; found = 0 }
    }
}

#ifdef NO_RELEASE_LAST
#define release(e) entry[e] = 0; d_step { true_lease[e] = 0; forget(e) }
#else
#define release(e) d_step { true_lease[e] = 0; forget(e); entry[e] = 0 }
#endif

inline note_entry()
{
#ifdef FAR
    if
    :: e == HOLDS0 - 1 && !far_used -> far_used = 1
    :: else
    fi
#else
    skip
#endif
}

/* One of the reader's threads returns frame g, the others go on to the next; the owner may reuse its
 * slot once it is not leased any more. */
inline take()
{
    d_step {
        if
        :: cursor[r] == g - 2 -> cursor[r] = g; f = 1
        :: else -> f = 0
        fi
    }
    if
    :: f == 0 -> release(e); goto idle
    :: else -> f = 0
    fi;
#if defined(NO_RAISE)
    assert(taken[r] <= g); /* the cursor does not go back */
    taken[r] = g
#else
    d_step {
        if
        :: taken[r] < g -> taken[r] = g
        :: else
        fi
    }
#endif
}

/* Lease frame g of slot s in entry e. */
inline lease()
{
    saw_death = 0;
    waits = 0;
retry:
    if
    :: gen[s] == g || gen[s] == claimed(g) -> skip
    :: else -> goto stale
    fi;
#ifdef NO_TAKE_AFTER_LEASE
    if
    :: wants(r) -> take()
    :: else
    fi;
#endif
#ifndef NO_NOTE_ENTRY
    note_entry();
#endif
    entry[e] = g;
check:
    atomic {
#ifdef NO_SECOND_READ
        true; goto leased
#else
        if
        :: gen[s] == g -> goto leased
#ifndef NO_WAIT_CLAIMED
#ifndef NO_DEAD_CLAIM
#ifndef NO_LOOK_AFTER_DEATH
        :: gen[s] == claimed(g) && saw_death -> goto leased
#endif
#endif
        :: gen[s] == claimed(g) && !saw_death -> waits++
#endif
        :: else -> goto clear
        fi
#endif
    }
#ifdef CLEAR_WHILE_WAITING
    entry[e] = 0;
#endif
#ifdef BOUNDED
    assert(waits <= WRITERS); /* nobody is made to wait twice by the same thread */
#else
    waits = 0;
#endif
    if
    :: gen[s] != claimed(g) -> skip
#ifndef NO_DEAD_CLAIM
    :: life[OWNER] >= NOTICED -> saw_death = 1;
#ifdef NO_LOOK_AFTER_DEATH
        goto leased
#endif
#endif
    fi;
#ifdef CLEAR_WHILE_WAITING
    goto retry;
#else
    goto check;
#endif
clear:
#ifndef NO_CLEAR
    entry[e] = 0;
#endif
stale:
    assert(gen[s] != g && gen[s] != claimed(g)); /* never stale while the frame stays */
    assert(!wants(r) || cursor[r] >= g);         /* what was promised is there */
    goto idle;
leased:
    waits = 0;
    saw_death = 0;
    d_step {
        assert(true_frame[s] == g); /* never torn */
        true_lease[e] = s + 1;
        true_got[r] = true_got[r] | (1 << (g / 2))
    }
#ifdef NO_NOTE_ENTRY
    note_entry();
#endif
#ifndef NO_TAKE_AFTER_LEASE
    if
    :: wants(r) -> take()
    :: else
    fi
#endif
}

/* Entry e goes to the stream, which will clear it. */
inline hand_to_stream(e)
{
    d_step {
        true_stream[r] = s + 1;
        true_lease[e] = 0;
        forget(e);
        stream_entry[r] = e + 1;
#ifdef NO_STREAM_CLEARS
        entry[e] = 0
#endif
    }
}

#ifdef NO_ENTRY_ZERO
#define is_free(e) (true_lease[e] == 0)
#else
#define is_free(e) (entry[e] == 0)
#endif

#ifdef NO_HEAD_FIRST
#define HEAD_FIRST 128 /* any generation */
#define UNSURE true
#else
#define HEAD_FIRST head
#define UNSURE false
#endif

proctype Reader(byte r; byte first; byte last)
{
    byte s, g, e, f, waits;
#if EVERY
    byte after, upto;
#endif
    bit saw_death;
    {
        skip;
    idle:
        atomic { s = 0; g = 0; e = first; f = 0 }
        if
        :: atomic { running[r]--; left[r] = (running[r] == 0) }
            goto out
        :: atomic { is_free(first) -> e = first }
        :: atomic { last != first && is_free(last) -> e = last }
        fi;
        if
        :: goto idle
#if EVERY
        :: wants(r) ->
            /* The smallest generation after the cursor and up to the head that one walk meets. */
            atomic { g = 0; s = 0; f = 0; after = cursor[r]; upto = HEAD_FIRST }
            if
            :: upto <= after -> after = 0; upto = 0; goto idle
            :: else
            fi;
            do
            :: f < SLOTS ->
                d_step {
                    if
                    :: is_frame(gen[f]) && gen[f] > after && gen[f] <= upto &&
                       (g == 0 || gen[f] < g) ->
                        g = gen[f];
                        s = f
                    :: else
                    fi;
                    f++
                }
            :: else -> break
            od;
            f = 0;
            upto = 0;
            if
            :: g != after + 2 ->
                assert(cursor[r] != after || g == 0 && UNSURE); /* a promised frame is in a slot */
                after = 0;
                goto idle
            :: else -> after = 0
            fi
#endif
        :: atomic { !wants(r) && true_frame[0] != 0 && gen[0] != 0 -> g = true_frame[0]; s = 0 }
#if SLOTS > 1
        :: atomic { !wants(r) && true_frame[1] != 0 -> g = true_frame[1]; s = 1 }
#endif
#if SLOTS > 2
        :: atomic { !wants(r) && true_frame[2] != 0 -> g = true_frame[2]; s = 2 }
#endif
        fi;
        lease();
        if
        :: release(e)
#if STREAM
        :: has_stream(r) && stream_entry[r] == 0 -> hand_to_stream(e)
#endif
        :: last != first && is_free(first + last - e) ->
            /* Hold the same frame once more; the first hold may end before the second. A scan that has
             * passed entry f may still come to entry e: wait for its end before e may be cleared. */
            f = first + last - e;
#ifndef NO_ENTRY_PER_HOLD
#ifdef FAR
            far_used = 1;
#endif
            entry[f] = g;
#ifndef NO_HOLD_READ
            gen[s] == g || life[OWNER] >= NOTICED;
#endif
#endif
            true_lease[f] = s + 1;
            release(e);
            if
            :: release(f)
#if STREAM
            :: has_stream(r) && stream_entry[r] == 0 -> hand_to_stream(f)
#endif
            fi
        fi;
        goto idle;
    out:
        skip
    } unless {
        atomic {
            life[r] == GONE ->
            s = 0;
            g = 0;
            e = 0;
            f = 0;
            waits = 0;
#if EVERY
            after = 0;
            upto = 0;
#endif
            saw_death = 0
        }
    }
}

#if STREAM
/* The device: finishes the work that reads the frame and clears the entry; nobody else does. When the
 * process has died the device may still run for a while before its work is thrown away. */
proctype Stream(byte r)
{
end:
    do
    :: d_step {
        stream_entry[r] != 0 ->
        true_stream[r] = 0;
#ifndef NO_STREAM_CLEARS
        if
        :: life[r] != GONE -> entry[stream_entry[r] - 1] = 0
        :: else
        fi;
#endif
        stream_entry[r] = 0
    }
    od
}
#endif

#if DEATHS
proctype Death(byte r)
{
    byte i;
#ifdef NO_GRACE
    life[r] = MARKED;
#endif
    d_step {
        life[r] = GONE;
        i = 0;
        do
        :: i < PLACES ->
            if
            :: reader_of(i) == r -> true_lease[i] = 0
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0
    }
}
#endif

init
{
    byte i;
    atomic {
        i = 0;
        do
        :: i < WRITERS -> run Writer(); i++
        :: else -> break
        od;
#if THREADS == 2
        running[0] = 2;
        run Reader(0, 0, 0);
        run Reader(0, 1, 1);
#else
        running[0] = 1;
        run Reader(0, 0, HOLDS0 - 1);
#endif
#if READERS > 1
        running[1] = 1;
        run Reader(1, HOLDS0, HOLDS0 + HOLDS1 - 1);
#endif
#if READERS > 2
        running[2] = 1;
        run Reader(2, HOLDS0 + HOLDS1, PLACES - 1);
#endif
#if STREAM
        run Stream(0); /* of reader 0 */
#endif
#if DEATHS
        i = 0;
        do
        :: i <= READERS ->
            if
            :: (DEATHS >> i) & 1 -> run Death(i)
            :: else
            fi;
            i++
        :: else -> break
        od;
#endif
        i = 0
    }
}
