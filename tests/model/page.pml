/* Joining and leaving: the pages that the owner's writers look at.
 *
 * The owner's service thread makes a page for a reader that asks, puts it into the list that writers
 * walk, and answers; when the reader leaves or dies it takes the page out of the list and unmaps it.
 * WRITERS threads of the owner loan, claim and publish meanwhile (as in lease.pml, shortened); readers
 * lease frames as soon as they have their answer. Each rule stands in an #ifndef NO_x: run.sh compiles
 * it out and expects an error. Names that begin with `true_` are the observer's. */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef WRITES
#define WRITES 3
#endif
#ifndef WRITERS
#define WRITERS 1
#endif
#ifndef READERS
#define READERS 2
#endif
#ifndef EVERY
#define EVERY 0 /* bit r: reader r wants every frame */
#endif
#ifndef WAIT_READERS
#define WAIT_READERS 0 /* 1: the first loan waits until reader 0 has joined */
#endif
/* -DSTARTED: the first write was published before anybody came. */

#define NONE 255
#define claimed(g) ((g) | 129)
#define is_frame(g) (((g) & 129) == 0)
#define wants(r) ((EVERY >> (r)) & 1)

byte gen[SLOTS];
byte head;
byte entry[READERS];       /* one hold for each reader */
byte taken[READERS];
byte list;                 /* bit r: the page of reader r is in the list that writers load */
byte walking;              /* writers that look at a list right now */
bit asked[READERS];        /* the reader has asked for a page */
bit answered[READERS];     /* the reader has its page */
bit left[READERS];         /* the reader has closed its lifeline */
bit dead[READERS];
byte begun;
bit publishing;            /* writers number and publish in turn */
byte published;

bit true_mapped[READERS];  /* the owner has the page mapped */
byte true_frame[SLOTS];
byte true_lease[READERS];  /* slot + 1 */
byte true_got[READERS];    /* bit n: the reader got write n */
byte true_start[READERS];  /* newest frame when the reader's page came into the list */
bit true_told[READERS];    /* it is owed all frames after that one */

#define void(r) dead[r]

/* What a loan waits for: only for blocking. */
#define in_list(r) ((list >> (r)) & 1)
#define keeps(r, s)                                                                                \
    (in_list(r) && !void(r) && (entry[r] == gen[s] || (wants(r) && taken[r] < gen[s])))
#if READERS > 1
#define keeps1(s) keeps(1, s)
#else
#define keeps1(s) false
#endif
#define may_take(s)                                                                                \
    (gen[s] == 0 || (is_frame(gen[s]) && (SLOTS == 1 || gen[s] < head) && !keeps(0, s) && !keeps1(s)))
#if SLOTS == 1
#define slot_free may_take(0)
#elif SLOTS == 2
#define slot_free (may_take(0) || may_take(1))
#else
#define slot_free (may_take(0) || may_take(1) || may_take(2))
#endif

#if WAIT_READERS && !defined(NO_WAIT_READERS)
#define enough_readers (begun > 1 || in_list(0))
#define MAY_LEAVE (published > 0) /* else the owner would wait for another reader */
#else
#define enough_readers true
#define MAY_LEAVE true
#endif

inline check_overwrite()
{
    i = 0;
    do
    :: i < READERS ->
        assert(true_lease[i] != s + 1); /* never torn */
        assert(!true_told[i] || left[i] || dead[i] || true_frame[s] <= true_start[i] ||
               ((true_got[i] >> (true_frame[s] / 2)) & 1)); /* what was promised is kept */
        i++
    :: else -> break
    od;
    i = 0;
    true_frame[s] = 0
}

inline scan_all()
{
    avoid = 0;
    least = NONE;
    i = 0;
    do
    :: i < READERS ->
        d_step {
            if
            :: (pages >> i) & 1 ->
                assert(true_mapped[i]); /* nobody looks at a page that is unmapped */
                if
                :: entry[i] != 0 && !void(i) ->
                    s = 0;
                    do
                    :: s < SLOTS ->
                        if
                        :: gen[s] == entry[i] -> avoid = avoid | (1 << s)
                        :: else
                        fi;
                        s++
                    :: else -> break
                    od;
                    s = 0
                :: else
                fi;
                if
                :: wants(i) && !void(i) && taken[i] < least -> least = taken[i]
                :: else
                fi
            :: else
            fi;
            i++
        }
    :: else -> break
    od;
    i = 0
}

inline choose()
{
    d_step {
        s = NONE;
        i = 0;
        do
        :: i < SLOTS ->
            if
            :: is_frame(gen[i]) && !((avoid >> i) & 1) && gen[i] <= least &&
               (SLOTS == 1 || gen[i] == 0 || gen[i] < newest) ->
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

/* A reader that joined since the first scan may still have to take what another writer published. */
#ifndef NO_CURSOR_RESCAN
#define joined_late(r) (wants(r) && taken[r] < g)
#else
#define joined_late(r) false
#endif

proctype Writer()
{
    byte s, g, i, avoid, least, newest, pages;
    bit found;
loan:
    if
    :: atomic { begun < WRITES -> begun++ }
    :: else -> goto out
    fi;
again:
    slot_free && enough_readers;
#ifndef NO_WALK_COUNT_FIRST
    walking++;
    pages = list;
#else
    pages = list;
    walking++;
#endif
    scan_all();
    newest = head;
pick:
    choose();
    if
    :: s == NONE -> atomic { walking--; s = 0; avoid = 0; least = 0; newest = 0; pages = 0 }
        goto again
    :: else
    fi;
    d_step {
        if
        :: gen[s] == g -> gen[s] = claimed(g); found = 0
        :: else -> found = 1
        fi
    }
    if
    :: found -> found = 0; avoid = avoid | (1 << s); goto pick
    :: else
    fi;
#ifndef NO_RELOAD_LIST
    pages = list;
#endif
    if
    :: g != 0 ->
        do
        :: i < READERS ->
            d_step {
                if
                :: (pages >> i) & 1 ->
                    assert(true_mapped[i]);
                    found = found | ((entry[i] == g || joined_late(i)) && !void(i))
                :: else
                fi;
                i++
            }
        :: else -> break
        od;
        i = 0
    :: else
    fi;
    if
    :: found -> found = 0; avoid = avoid | (1 << s); gen[s] = g; goto pick
    :: else
    fi;
    atomic { walking--; avoid = 0; least = 0; newest = 0; pages = 0; g = 0 }
    gen[s] = 2 * begun - 1;
    d_step { check_overwrite() }
#if WRITERS > 1
    d_step { !publishing -> publishing = 1 }
#endif
    d_step { published++; true_frame[s] = 2 * published; gen[s] = 2 * published }
    head = 2 * published;
    publishing = 0;
    s = 0;
    goto loan;
out:
    skip
}

/* Where the reader begins: with the newest frame, if that stays until it comes to take it. From the
 * moment when its page is in the list it is owed every frame that is published. */
inline set_cursor(r)
{
    start = head;
    taken[r] = (start > 0 -> start - 2 : 0);
    start = 0
}

inline link_page(r)
{
    d_step { list = list | (1 << r); true_start[r] = head; true_told[r] = wants(r) }
}

inline serve(r)
{
    true_mapped[r] = 1;
#ifndef NO_CURSOR_BEFORE_LINK
    set_cursor(r);
#endif
#ifdef NO_LINK_FIRST
    answered[r] = 1;
#endif
    link_page(r);
#ifdef NO_CURSOR_BEFORE_LINK
    set_cursor(r);
#endif
    assert(!WAIT_READERS || !wants(r) || taken[r] == 0); /* whoever was waited for misses nothing */
    answered[r] = 1
}

inline retire(r)
{
    list = list & ~(1 << r);
#ifndef NO_WAIT_FOR_WALKERS
    walking == 0;
#endif
    true_mapped[r] = 0
}

proctype Service()
{
    byte start;
end:
    do
    :: asked[0] && !answered[0] && !dead[0] -> serve(0)
    :: (left[0] || dead[0]) && true_mapped[0] -> retire(0)
#if READERS > 1
    :: asked[1] && !answered[1] && !dead[1] -> serve(1)
    :: (left[1] || dead[1]) && true_mapped[1] -> retire(1)
#endif
    od
}

/* A claimed frame counts: it may yet be put back. */
#ifndef NO_COUNT_CLAIMED
#define frame_of(g) (((g) & 128) -> ((g) & 126) : (g))
#else
#define frame_of(g) (g)
#endif
#define in_window(g) (is_frame(frame_of(g)) && frame_of(g) > after && frame_of(g) <= upto)

proctype Reader(byte r)
{
    byte s, g, i, after, upto;
    {
        asked[r] = 1;
        answered[r];
        after = taken[r];
    idle:
        atomic { s = 0; g = 0 }
        if
        :: MAY_LEAVE -> left[r] = 1; goto out
        :: wants(r) && head > after -> goto next
        :: atomic { !wants(r) && true_frame[0] != 0 -> g = true_frame[0]; s = 0 }
#if SLOTS > 1
        :: atomic { !wants(r) && true_frame[1] != 0 -> g = true_frame[1]; s = 1 }
#endif
#if SLOTS > 2
        :: atomic { !wants(r) && true_frame[2] != 0 -> g = true_frame[2]; s = 2 }
#endif
        fi;
        goto lease;
    next:
        upto = head;
        i = 0;
        do
        :: i < SLOTS ->
            d_step {
                if
                :: in_window(gen[i]) && (g == 0 || frame_of(gen[i]) < g) ->
                    g = frame_of(gen[i]);
                    s = i
                :: else
                fi;
                i++
            }
        :: else -> break
        od;
        i = 0;
        upto = 0;
        assert(g <= after + 2 || g <= true_start[r] + 2); /* nothing that is owed is skipped */
        if
        :: g == 0 -> assert(head <= true_start[r] || SLOTS == 1); goto idle
        :: else
        fi;
    lease:
        entry[r] = g;
        do
        :: gen[s] == g -> break
        :: gen[s] != g && gen[s] != claimed(g) ->
            assert(!wants(r) || g <= true_start[r]);
            entry[r] = 0;
            goto idle
        od;
        atomic {
            assert(true_frame[s] == g); /* never torn */
            true_lease[r] = s + 1;
            true_got[r] = true_got[r] | (1 << (g / 2))
        }
        if
        :: wants(r) -> after = g; taken[r] = g
        :: else
        fi;
        d_step { true_lease[r] = 0; entry[r] = 0 }
        goto idle;
    out:
        skip
    } unless { dead[r] }
}

#ifdef DEATHS
active proctype Death()
{
    d_step { dead[0] = 1; true_lease[0] = 0 }
}
#endif

init
{
    byte i;
    atomic {
        do
        :: i < WRITERS -> run Writer(); i++
        :: else -> break
        od;
#ifdef STARTED
        begun = 1;
        published = 1;
        gen[0] = 2;
        true_frame[0] = 2;
        head = 2;
#endif
        run Service();
        run Reader(0);
#if READERS > 1
        run Reader(1);
#endif
        i = 0
    }
}
