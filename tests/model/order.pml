/* What the lease protocol needs of the memory order: one slot, one writer, one reader.
 *
 * Stores go through store buffers: the generation and the two words of the payload leave the owner's in
 * any order (non-temporal stores do so on x86, all stores on weaker machines), the entry leaves the
 * reader's whenever it likes, and later loads do not wait for either. Fences wait until a buffer is
 * empty. -DRAW: the reader copies the frame without a lease (seqlock). Each rule stands in an
 * #ifndef NO_x: run.sh compiles it out and expects an error. */

#define WRITES 3
#define claimed(g) ((g) | 129)

byte gen = 2;             /* of the slot: write 1 is complete */
byte entry;               /* the reader's lease entry */
byte word[2] = {1, 1};    /* the payload: the number of the write that stored each word */

/* Store buffers; 0: empty. */
byte late_gen, late_word[2];
byte late_entry;          /* generation + 1 */

active proctype Memory()
{
end:
    do
    :: d_step { late_gen != 0 -> gen = late_gen; late_gen = 0 }
    :: d_step { late_word[0] != 0 -> word[0] = late_word[0]; late_word[0] = 0 }
    :: d_step { late_word[1] != 0 -> word[1] = late_word[1]; late_word[1] = 0 }
    :: d_step { late_entry != 0 -> entry = late_entry - 1; late_entry = 0 }
    od
}

active proctype Owner()
{
    byte n = 2, g = 2;
    bit found;
    do
    :: n <= WRITES ->
        entry != g; /* the first scan */
        late_gen = claimed(g);
#ifndef NO_MARK_FENCE
        late_gen == 0;
#endif
        found = (entry == g);
        if
        :: found ->
            found = 0;
            late_gen = g
        :: else ->
            late_gen = g + 1;
            late_word[0] = n;
            late_word[1] = n;
#ifndef NO_STORE_FENCE
            late_word[0] == 0 && late_word[1] == 0;
#endif
            late_gen = g + 2;
            g = g + 2;
            n++
        fi
    :: else -> break
    od
}

#ifndef RAW
active proctype Reader()
{
    byte g, first, second;
again:
    if
    :: true -> goto out
    :: true
    fi;
#ifdef NO_READ_ORDER
    first = word[0]; /* the load has overtaken those of the generation */
#endif
    atomic { !(gen & 1) -> g = gen }
    late_entry == 0;
    late_entry = g + 1;
#ifndef NO_ENTRY_FENCE
    late_entry == 0;
#endif
    do
    :: gen == g -> break
    :: gen != g && gen != claimed(g) -> goto clear
    od;
#ifndef NO_READ_ORDER
    first = word[0];
#endif
    second = word[1];
    assert(first == g / 2 && second == g / 2); /* never torn */
clear:
    late_entry == 0;
    late_entry = 1;
    atomic { first = 0; second = 0; g = 0 }
    goto again;
out:
    skip
}
#else
active proctype Reader()
{
    byte g, first, second;
    bit same;
again:
    if
    :: true -> goto out
    :: true
    fi;
#ifdef NO_READ_ORDER
    first = word[0]; /* the load has overtaken that of the generation */
#endif
    atomic { !(gen & 1) -> g = gen }
#ifdef NO_READ_FENCE
    same = (gen == g); /* the load has overtaken those of the payload */
#endif
#ifndef NO_READ_ORDER
    first = word[0];
#endif
    second = word[1];
#ifndef NO_READ_FENCE
    same = (gen == g);
#endif
    assert(!same || first == g / 2 && second == g / 2); /* torn only when told to retry */
    atomic { first = 0; second = 0; g = 0; same = 0 }
    goto again;
out:
    skip
}
#endif
